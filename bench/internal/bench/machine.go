package bench

import (
	"fmt"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// fileSystems names the types that statfs(2) tells, from linux/magic.h.
var fileSystems = map[int64]string{
	unix.EXT4_SUPER_MAGIC: "ext4", unix.XFS_SUPER_MAGIC: "xfs", unix.BTRFS_SUPER_MAGIC: "btrfs", unix.TMPFS_MAGIC: "tmpfs",
	unix.OVERLAYFS_SUPER_MAGIC: "overlayfs", unix.F2FS_SUPER_MAGIC: "f2fs", unix.NFS_SUPER_MAGIC: "nfs",
}

// Machine describes where the numbers come from, in one line. The load tells how far to trust them.
func Machine(dir string) string {
	var info unix.Sysinfo_t
	var name unix.Utsname
	var fs unix.Statfs_t
	if unix.Sysinfo(&info) != nil || unix.Uname(&name) != nil || unix.Statfs(dir, &fs) != nil {
		return "unknown machine"
	}
	who := "root"
	if uid := os.Getuid(); uid != 0 {
		who = fmt.Sprintf("user %d", uid)
	}
	kind, ok := fileSystems[int64(fs.Type)]
	if !ok {
		kind = fmt.Sprintf("file system %#x", fs.Type)
	}
	memory := float64(info.Totalram) * float64(info.Unit) / (1 << 30)
	load := "unknown"
	if b, err := os.ReadFile("/proc/loadavg"); err == nil {
		load, _, _ = strings.Cut(string(b), " ")
	}
	return fmt.Sprintf("%d cores, %.1f GiB, %s %s, %s, %s at %s, load %s", runtime.NumCPU(), memory,
		unix.ByteSliceToString(name.Release[:]), runtime.GOARCH, who, kind, dir, load)
}
