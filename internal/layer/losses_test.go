package layer

import (
	"bytes"
	"context"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/layer/layertest"
)

// What a layer does not keep is said, and nothing else is.
func TestCache_CaptureSaysWhatIsLost(t *testing.T) {
	c, dir := openTestCache(t, testOptions(t)), scratch(t)
	seed(t, dir)
	must(t, layertest.Socket(dir+"/dir/s"))
	want := []Lost{{"dir/s", lostSocket}}
	if os.Getuid() == 0 {
		for _, f := range []string{dir + "/a.txt", dir + "/dir"} {
			must(t, unix.Setxattr(f, "trusted.note", []byte("n"), 0))
		}
		must(t, unix.Setxattr(dir+"/run.sh", "security.capability", capability(), 0))
		must(t, unix.Setxattr(dir, "trusted.warmfleet.inplace", []byte("/marker"), 0))
		must(t, setImmutable(dir+"/twin1", true))
		t.Cleanup(func() { must(t, setImmutable(dir+"/twin1", false)) })
		want = append([]Lost{{"a.txt", "attribute trusted.note"}, {"dir", "attribute trusted.note"}}, want[0], Lost{"twin1", "flag immutable"})
	}
	l, _, _, err := c.Capture(context.Background(), dir, nil)
	must(t, err)
	if d := cmp.Diff(sorted(l.Lost), want); d != "" {
		t.Fatalf("lost (-got +want):\n%s", d)
	}
	to := scratch(t)
	x, err := c.Restore(context.Background(), to, nil, Chain{l})
	must(t, err)
	if d := cmp.Diff(x.Lost(), []Lost(nil)); d != "" {
		t.Fatalf("not given back (-got +want):\n%s", d)
	}
	layertest.Compare(t, to, dir, layertest.Options{Skip: []string{"dir/s"}})
}

// capability is cap_net_bind_service=ep of a file (struct vfs_cap_data, revision 2).
func capability() []byte {
	return []byte{1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
}

// What an ordinary user cannot give back is said by the layer that was unpacked, and by the restore.
func TestCache_UnpackSaysWhatAnOrdinaryUserLoses(t *testing.T) {
	tar := rawTar(t,
		tarHeader{name: "./", flag: flagDir, mode: 0o755},
		tarHeader{name: "bin", flag: flagFile, mode: 0o755, records: rec(recXattr+"security.capability", string(capability()))},
		tarHeader{name: "dev", flag: flagBlock, rdev: 0x103},
		tarHeader{name: "none", flag: flagFile, mode: 0, size: 4},
		tarHeader{name: "theirs", flag: flagFile, mode: 0o4755, uid: 7, gid: 8, records: rec(recUID, "7", recGID, "8")})
	name, packed := storedAs(t, tar)
	c := openTestCache(t, testOptions(t))
	l, err := c.Unpack(context.Background(), nil, name, bytes.NewReader(packed))
	must(t, err)
	var want []Lost
	if os.Getuid() != 0 {
		want = []Lost{{"bin", "attribute security.capability"}, {"dev", lostDevice}, {"theirs", "owner 7:8"}}
	}
	if d := cmp.Diff(sorted(l.Lost), want); d != "" {
		t.Fatalf("lost by unpacking (-got +want):\n%s", d)
	}
	dir := scratch(t)
	x, err := c.Restore(context.Background(), dir, nil, Chain{l})
	must(t, err)
	got := take(t, dir)
	if got["none"].Mode != 0 || got["none"].Size != 4 || got["theirs"].Mode != 0o4755 {
		t.Errorf("none is %+v, theirs %+v", got["none"], got["theirs"])
	}
	if os.Getuid() == 0 {
		if d := cmp.Diff(x.Lost(), []Lost(nil)); d != "" || got["bin"].Xattrs["security.capability"] != string(capability()) || got["theirs"].UID != 7 {
			t.Errorf("lost by restoring (-got +want):\n%s", d)
		}
		return
	}
	if d := cmp.Diff(sorted(x.Lost()), []Lost{{"theirs", "owner 7:8"}}); d != "" {
		t.Errorf("lost by restoring (-got +want):\n%s", d)
	}
}

func sorted(l []Lost) []Lost {
	sortLost(l)
	return l
}
