package isolate_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/isolate"
	"github.com/warmfleet/warmfleet/internal/isolate/inside"
)

func TestSandbox_HidesFiles(t *testing.T) {
	b := newBox(t, isolate.Config{})
	secret := filepath.Join(tempDir(t), "secret")
	mustWrite(t, secret, "canary-file")
	if err := os.Chmod(filepath.Dir(secret), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{
		secret, "/proc/1/root" + secret, "/proc/1/cwd/" + secret, "/proc/self/cwd/../../.." + secret, "/../../.." + secret,
		"/etc/shadow", "/root/.ssh", "/etc/ssh", "/etc/gitconfig", "/sys/kernel", "/boot", "/proc/kcore", "/proc/1/environ", "/proc/1/maps",
		"/proc/1/task/*/environ", "/proc/1/task/*/maps", "/proc/1/task/*/root/home",
		b.path("lower/old"), b.path("upper"),
	} {
		out, r := b.sh(fmt.Sprintf("cat %[1]s/* %[1]s 2>/dev/null", name))
		if out != "" || plainOf(r).Code == 0 {
			t.Errorf("%s: got %q, %+v; want nothing", name, out, plainOf(r))
		}
	}
	out, _ := b.sh("cat /proc/self/mountinfo /proc/self/mounts")
	if strings.Contains(out, b.dir) {
		t.Errorf("the mount table names the host's paths:\n%s", out)
	}
}

func TestSandbox_RefusesWrites(t *testing.T) {
	b := newBox(t, isolate.Config{})
	outside := filepath.Join(tempDir(t), "outside")
	mustWrite(t, outside, "before")
	if err := os.Chmod(outside, 0o666); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{
		outside, "/usr/x", "/usr/bin/x", "/etc/x", "/etc/passwd", "/x", "/lib/x", "/dev/x", "/proc/sys/kernel/core_pattern",
		"/proc/sys/kernel/hostname", "/proc/sysrq-trigger", "/proc/sys/user/max_user_namespaces", "/proc/1/oom_score_adj", "/run/x", "/var/x",
	} {
		if out, r := b.sh("echo x >" + name); plainOf(r).Code == 0 {
			t.Errorf("%s could be written: %s", name, out)
		}
	}
	if got, err := os.ReadFile(outside); err != nil || string(got) != "before" {
		t.Errorf("outside: got %q, %v; want before", got, err)
	}
	for _, name := range []string{"/workspace/x", "/tmp/x", "/var/tmp/y", "/home/sandbox/x", "/dev/shm/x"} {
		if out, r := b.sh("echo x >" + name); plainOf(r).Code != 0 {
			t.Errorf("%s can't be written: %s", name, out)
		}
	}
	if out, r := b.sh("mount -t tmpfs none /tmp || unshare -rm true || mknod /tmp/null c 1 3 || chroot / true"); plainOf(r).Code == 0 {
		t.Errorf("something privileged was possible: %s", out)
	}
}

func TestSandbox_HidesEnvironment(t *testing.T) {
	t.Setenv("CANARY_ENV", "canary-env")
	b := newBox(t, isolate.Config{})
	out, _ := b.sh("env; for p in /proc/[0-9]*; do tr '\\0' '\\n' <$p/environ; tr '\\0' '\\n' <$p/cmdline; done 2>/dev/null")
	if strings.Contains(out, "canary") || strings.Contains(out, b.dir) {
		t.Errorf("the environment came through:\n%s", out)
	}
	if out, r := b.sh("cat /proc/1/environ"); plainOf(r).Code == 0 {
		t.Errorf("/proc/1/environ could be read: %q", out)
	}
	out, _ = b.sh("env", func(c *isolate.Command) { c.Argv, c.Env = []string{"/usr/bin/env"}, []string{"ONE=1"} })
	if out != "ONE=1\n" {
		t.Errorf("environment: got %q, want only what was given", out)
	}
}

func TestSandbox_HidesProcesses(t *testing.T) {
	b := newBox(t, isolate.Config{})
	out, _ := b.sh("cd /proc; echo [0-9]*")
	if got := len(strings.Fields(out)); got > 2 {
		t.Errorf("visible processes: got %s, want init and the shell", out)
	}
	if out, r := b.sh("hostname; readlink /proc/1/exe"); plainOf(r).Code == 0 || out != "sandbox\n" {
		t.Errorf("got %q, %+v; want the sandbox's host name and no program of init", out, plainOf(r))
	}
}

func TestSandbox_Network(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	abstract, err := net.Listen("unix", fmt.Sprintf("@isolate-test-%d", os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	defer abstract.Close()
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	connect := "exec 3<>/dev/tcp/127.0.0.1/" + port
	b := newBox(t, isolate.Config{Network: isolate.NetworkNone})
	if out, r := b.sh(connect); plainOf(r).Code == 0 {
		t.Errorf("the host's loopback was reached: %s", out)
	}
	if out, _ := b.sh("grep -c isolate-test /proc/net/unix; ls /sys/class/net 2>/dev/null"); out != "0\n" {
		t.Errorf("abstract sockets: got %q, want none", out)
	}
	if out, _ := b.sh("tail -n +3 /proc/net/dev | cut -d: -f1"); strings.TrimSpace(out) != "lo" {
		t.Errorf("interfaces: got %q, want lo", out)
	}
	// A server on the sandbox's own loopback works.
	out, r := b.sh(`perl -MIO::Socket::INET -e '$s=IO::Socket::INET->new(Listen=>1,LocalAddr=>"127.0.0.1") or die $!; IO::Socket::INET->new("127.0.0.1:".$s->sockport) or die $!'`)
	if plainOf(r).Code != 0 {
		t.Errorf("own loopback: %s", out)
	}
	open := newBox(t, isolate.Config{Network: isolate.NetworkAllow})
	if out, r := open.sh(connect + " && test -s /etc/resolv.conf"); plainOf(r).Code != 0 {
		t.Errorf("with network: got %s", out)
	}
}

func TestSandbox_LeaksNoDescriptor(t *testing.T) {
	var ends [2]int
	if err := unix.Pipe2(ends[:], 0); err != nil { // not close-on-exec, as a careless launcher has it
		t.Fatal(err)
	}
	const leaked = 251
	if err := unix.Dup2(ends[1], leaked); err != nil {
		t.Fatal(err)
	}
	b := newBox(t, isolate.Config{})
	unix.Close(leaked)
	unix.Close(ends[1])
	out, _ := b.sh("cd /proc/self/fd && echo *")
	if got := strings.TrimSpace(out); got != "0 1 2" && got != "0 1 2 3" && got != "0 1 2 255" && got != "0 1 2 255 3" {
		t.Errorf("descriptors: got %q, want the standard ones and the shell's", got)
	}
	// Neither init nor a helper keeps the pipe open.
	if n, err := unix.Read(ends[0], make([]byte, 1)); n != 0 || err != nil {
		t.Errorf("leaked pipe: got %d, %v; want its end", n, err)
	}
	unix.Close(ends[0])
}

func TestSandbox_Identity(t *testing.T) {
	b := newBox(t, isolate.Config{})
	out, _ := b.sh("test $(ps -o sid= $$) = $$ && id -u; id -g; grep -E 'Cap(Inh|Prm|Eff|Bnd|Amb)|NoNewPrivs' /proc/self/status | tr -d '\\t'; umask; ulimit -c; grep -c . /proc/self/uid_map")
	zero := "0000000000000000"
	want := "1000\n1000\nCapInh:" + zero + "\nCapPrm:" + zero + "\nCapEff:" + zero + "\nCapBnd:" + zero + "\nCapAmb:" + zero + "\nNoNewPrivs:1\n0022\n0\n1\n"
	if out != want {
		t.Errorf("got:\n%swant:\n%s", out, want)
	}
	if out, r := b.sh("su -c true || setpriv --reuid 0 true || chown 0 old || kill -9 1 2>/dev/null && false"); plainOf(r).Code == 0 {
		t.Errorf("another identity was possible: %s", out)
	}
	// The kernel's view of a running command, and of what it writes.
	var uid uint32
	b.sh("echo >made; sleep 0.2", func(c *isolate.Command) {
		c.Started = func() {
			for _, pid := range inside.Descendants(b.Pid()) {
				if fi, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err == nil {
					uid = fi.Sys().(*syscall.Stat_t).Uid
				}
			}
		}
	})
	if int(uid) != hostID() || uid == 0 {
		t.Errorf("user id on the host: got %d, want %d", uid, hostID())
	}
	fi, err := os.Stat(b.path("upper/made"))
	if err != nil {
		t.Fatal(err)
	}
	if got := int(fi.Sys().(*syscall.Stat_t).Uid); got != hostID() {
		t.Errorf("owner of a new file: got %d, want %d", got, hostID())
	}
}

// Supplementary groups would be a way to files of the host.
func TestSandbox_DropsGroups(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root may drop groups, and has some to drop")
	}
	before, err := syscall.Getgroups()
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Setgroups([]int{0, 4, 27}); err != nil {
		t.Fatal(err)
	}
	defer syscall.Setgroups(before)
	b := newBox(t, isolate.Config{})
	if out, _ := b.sh("grep ^Groups /proc/self/status | tr -d '\\t '"); out != "Groups:\n" {
		t.Errorf("got %q, want no groups", out)
	}
}

func TestSandbox_Expose(t *testing.T) {
	parent := tempDir(t) // 0700: a root worker's sandbox can't pass it, the worker can
	dir := filepath.Join(parent, "tool", "deep")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	mustWrite(t, filepath.Join(dir, "file"), "exposed\n")
	mustWrite(t, filepath.Join(parent, "hidden"), "hidden\n")
	b := newBox(t, isolate.Config{Expose: []string{dir}})
	out, _ := b.sh(fmt.Sprintf("cat %[1]s/file; echo x >%[1]s/file; ls %[2]s; echo x 2>/dev/null >%[1]s/new", dir, parent))
	if !strings.Contains(out, "exposed\n") || !strings.Contains(out, "Read-only") || !strings.HasSuffix(out, "tool\n") {
		t.Errorf("got %q, want the file, a refusal to write and only the directory", out)
	}
	for _, dir := range []string{"relative", "/", "/proc/1", "/workspace/x", "/etc", "/a/../b"} {
		if _, err := isolate.Start(testContext(t), isolate.Config{Rung: rung(), Expose: []string{dir}}); err == nil {
			t.Errorf("expose %q: got no error", dir)
		}
	}
}

func TestStart_RefusesUserRungAsRoot(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("is about root")
	}
	if i, err := isolate.Start(testContext(t), isolate.Config{Rung: isolate.RungUser}); err == nil {
		i.Close()
		t.Error("got a sandbox that runs as the host's user 0")
	}
}

// Case F3: the worker's terminal is out of reach.
func TestSandbox_NoTerminal(t *testing.T) {
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo terminals here: %v", err)
	}
	defer master.Close()
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	terminal, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo terminals here: %v", err)
	}
	defer terminal.Close()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), modeVariable+"=terminal")
	report, err := os.CreateTemp("", "terminal")
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(report.Name())
	cmd.Stdin, cmd.Stdout, cmd.Stderr = terminal, report, report
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Run(); err != nil {
		t.Error(err)
	}
	out, err := os.ReadFile(report.Name())
	if err != nil {
		t.Fatal(err)
	}
	if got := string(out); got != "worker has a terminal\nno terminal\n" {
		t.Errorf("got %q", got)
	}
}

// terminalMode is a worker that was started from a terminal.
func terminalMode() int {
	if tty, err := os.Open("/dev/tty"); err == nil {
		tty.Close()
		fmt.Println("worker has a terminal")
	}
	t := &standIn{}
	defer t.done()
	b := newBox(t, isolate.Config{})
	// 0x5412 is TIOCSTI, which types into a terminal.
	out, _ := b.sh(`{ head -1 </dev/tty || perl -e 'open(T,"+</dev/tty") or exit 1; ioctl(T,0x5412,"X") or exit 1' || perl -e 'ioctl(STDIN,0x5412,"X") or exit 1'; } 2>/dev/null || echo no terminal`)
	fmt.Print(out)
	return 0
}
