package applier

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/layer"
)

// oneFile is Content that has the same bytes everywhere.
type oneFile string

func (f oneFile) Open(layer.Path) (io.ReadCloser, error) { return os.Open(string(f)) }

func setXattr(t testing.TB, p, name, value string) {
	t.Helper()
	if err := unix.Lsetxattr(p, name, []byte(value), 0); err != nil {
		t.Fatalf("set %s of %s: %v", name, p, err)
	}
}

// acl is the stored form of a POSIX ACL that gives its owner everything and one user read access (linux/posix_acl_xattr.h).
func acl(user uint32) string {
	b := binary.LittleEndian.AppendUint32(nil, 2)
	for _, e := range [][3]uint32{{1, 7, ^uint32(0)}, {2, 4, user}, {4, 4, ^uint32(0)}, {16, 4, ^uint32(0)}, {32, 4, ^uint32(0)}} {
		b = binary.LittleEndian.AppendUint16(b, uint16(e[0]))
		b = binary.LittleEndian.AppendUint16(b, uint16(e[1]))
		b = binary.LittleEndian.AppendUint32(b, e[2])
	}
	return string(b)
}

func TestSession_OwnersAndACLs(t *testing.T) {
	asRoot(t)
	tr := newTrees(t, script(t, baseScript))
	sh(t, tr.orig, `chown 1234:2345 a d; chown -h 1234:2345 link; chmod 2775 d`)
	setXattr(t, filepath.Join(tr.orig, "a"), aclAccess, acl(4321))
	sh(t, tr.ours, `echo A>a; echo n>d/n; mkdir -p d/x/y; echo z>d/x/y/z; ln -sfn b link; chown -R 77:77 d/x`)
	mustApply(t, tr.orig, tr.request(t))
	got := entries(t, tr.orig)
	for p, want := range map[layer.Path][2]int{
		"a": {1234, 2345}, "link": {1234, 2345}, "d/n": {1234, 2345}, "d/x": {1234, 2345}, "d/x/y/z": {1234, 2345}, "b": {0, 0},
	} {
		if e := got[p]; e.UID != want[0] || e.GID != want[1] {
			t.Errorf("owner of %s: got %d:%d, want %d:%d", p, e.UID, e.GID, want[0], want[1])
		}
	}
	if diff := cmp.Diff(acl(4321), string(got["a"].Xattrs[aclAccess])); diff != "" {
		t.Errorf("ACL of a: (-want +got)\n%s", diff)
	}
	if got["a"].Digest != entries(t, tr.ours)["a"].Digest {
		t.Error("a was not replaced")
	}
}

func TestSession_DefaultACLDoesNotReachOldFiles(t *testing.T) {
	tr := newTrees(t, script(t, baseScript))
	setXattr(t, tr.orig, aclDefault, acl(4321))
	sh(t, tr.ours, `echo A>a`)
	mustApply(t, tr.orig, tr.request(t))
	if got := entries(t, tr.orig)["a"].Xattrs; got != nil {
		t.Errorf("attributes of a: got %v, want none", got)
	}
}

func TestSession_Special(t *testing.T) {
	asRoot(t)
	tr := newTrees(t, script(t, baseScript+`; cp /bin/true suid; chmod 4755 suid; mkdir g; chmod 2755 g`))
	sh(t, tr.ours, `mknod dev c 1 3; echo c>cap; echo evil>suid; chmod 4755 suid; mkdir g/in; chmod 2755 g/in; echo ok>g/in/f; mkdir own; chmod 2755 own; chmod 755 g`)
	setXattr(t, filepath.Join(tr.ours, "cap"), capability, "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00")
	req := tr.request(t)
	mustApply(t, tr.orig, req, "cap: special", "dev: special", "own: special", "suid: special")
	req.AllowSpecial = true
	mustApply(t, tr.orig, req)
	sameTrees(t, "original", snapshot(t, tr.orig), snapshot(t, tr.ours))
}

func mount(t *testing.T, dir, options string) {
	t.Helper()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		t.Skipf("needs the right to mount: %v", err)
	}
	t.Cleanup(func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) })
}

func TestSession_OtherMount(t *testing.T) {
	asRoot(t)
	tr := newTrees(t, script(t, baseScript))
	sh(t, tr.ours, `echo A>a; echo F>d/f`)
	req := tr.request(t)
	mount(t, filepath.Join(tr.orig, "d"), "")
	sh(t, tr.orig, `echo f>d/f`)
	before := snapshot(t, tr.orig)
	if _, err := apply(tr.orig, req, nil); !errors.Is(err, ErrOtherMount) || !strings.Contains(err.Error(), "d/f") {
		t.Errorf("error: got %v, want ErrOtherMount that names d/f", err)
	}
	sameTrees(t, "original", snapshot(t, tr.orig), before)
	noJournal(t, tr.orig)
}

// Case B6: a full disk is an error, and nothing is left of the attempt.
func TestSession_DiskFull(t *testing.T) {
	asRoot(t)
	parent := t.TempDir()
	mount(t, parent, "size=2m")
	tr := trees{base: memDir(t), orig: filepath.Join(parent, "orig"), ours: memDir(t)}
	must(t, os.Mkdir(tr.orig, 0o755))
	for _, dir := range []string{tr.base, tr.orig, tr.ours} {
		sh(t, dir, baseScript+`; chmod 755 .`)
	}
	sh(t, tr.ours, `echo A>a; rm b; echo 1>n1; head -c 3000000 /dev/urandom>n2`)
	before := snapshot(t, tr.orig)
	if _, err := apply(tr.orig, tr.request(t), nil); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("error: got %v, want ENOSPC", err)
	}
	sameTrees(t, "original", snapshot(t, tr.orig), before)
	noJournal(t, tr.orig)
	sh(t, tr.ours, `rm n2`)
	mustApply(t, tr.orig, tr.request(t))
}

func TestSession_ReadOnlyDirectory(t *testing.T) {
	asUser(t)
	for _, tc := range []struct{ name, dir, names string }{{"Inner", "d", `"d"`}, {"Root", ".", layer.JournalDir}} {
		t.Run(tc.name, func(t *testing.T) {
			tr := newTrees(t, script(t, baseScript))
			sh(t, tr.ours, `echo A>a; echo F>d/f; echo n>n`)
			req := tr.request(t)
			sh(t, tr.orig, `chmod 555 `+tc.dir)
			before := snapshot(t, tr.orig)
			if _, err := apply(tr.orig, req, nil); !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), tc.names) {
				t.Errorf("error: got %v, want one of permission that names %s", err, tc.names)
			}
			sameTrees(t, "original", snapshot(t, tr.orig), before)
			noJournal(t, tr.orig)
		})
	}
}

// Directories that the base already had read-only are opened for what the plan does in them.
func TestSession_PlanOpensReadOnlyDirectories(t *testing.T) {
	tr := newTrees(t, script(t, `mkdir -p mod/x other top; echo f>mod/x/f; echo o>other/o; chmod 444 mod/x/f; chmod 555 mod/x mod other top`))
	sh(t, tr.ours, `chmod -R u+w mod other; rm -r mod; echo O>other/o; chmod 511 other; chmod 755 top; echo n>top/n`)
	req := tr.request(t)
	before := snapshot(t, tr.orig)
	if _, err := apply(tr.orig, req, at("do ", func() { sh(t, tr.orig, `echo own>top.late; chmod u+w top; echo own>top/n; chmod 555 top; rm top.late`) })); err == nil {
		t.Fatal("no late conflict")
	}
	sh(t, tr.orig, `chmod u+w top; rm top/n; chmod 555 top`)
	sameTrees(t, "after late conflict", snapshot(t, tr.orig), before)
	mustApply(t, tr.orig, req)
	sameTrees(t, "original", snapshot(t, tr.orig), snapshot(t, tr.ours))
}

func TestSession_ForeignFile(t *testing.T) {
	asUser(t)
	tr := newTrees(t, script(t, baseScript))
	sh(t, tr.ours, `chmod 600 a`)
	s := open(t, tr.orig, nil)
	p, _, err := s.Check(context.Background(), tr.request(t))
	must(t, err)
	// An owner that this user cannot give.
	for i := range p.ops {
		p.ops[i].Kind, p.ops[i].New.GID = opSwap, 0
	}
	must(t, s.Stage(context.Background(), p))
	if got := s.Lost(); len(got) != 1 || got[0].Path != "a" {
		t.Errorf("lost: got %v, want the owner of a", got)
	}
}

func TestOpen_ForeignJournalDirectory(t *testing.T) {
	for name, prepare := range map[string]string{
		"Link":     `mkdir real; ln -s real .warmfleet-apply`,
		"File":     `echo x>.warmfleet-apply`,
		"Writable": `mkdir .warmfleet-apply; chmod 777 .warmfleet-apply`,
	} {
		t.Run(name, func(t *testing.T) {
			root := memDir(t)
			sh(t, root, prepare)
			if _, err := Open(context.Background(), root, Options{}); !errors.Is(err, ErrForeign) {
				t.Errorf("error: got %v, want ErrForeign", err)
			}
		})
	}
	root := memDir(t)
	sh(t, root, `mkdir real; ln -s real link`)
	if _, err := Open(context.Background(), filepath.Join(root, "link"), Options{}); err == nil {
		t.Error("a root that is a link was opened")
	}
}

func TestOpen_DamagedJournal(t *testing.T) {
	t.Run("NotBegun", func(t *testing.T) {
		root := memDir(t)
		sh(t, root, `mkdir -m 700 .warmfleet-apply .warmfleet-apply/P.1; echo half>.warmfleet-apply/journal.prepared; echo x>.warmfleet-apply/P.1/000000; mkdir .warmfleet-apply/P.1/000001`)
		s := open(t, root, nil)
		if p, pending := s.Pending(); pending {
			t.Errorf("pending: got %+v, want none", p)
		}
		must(t, s.Close())
		noJournal(t, root)
	})
	t.Run("Begun", func(t *testing.T) {
		tr := newTrees(t, script(t, baseScript))
		sh(t, tr.ours, `echo A>a; echo B>b`)
		interrupt(t, tr, "b")
		before := snapshot(t, filepath.Join(tr.orig, layer.JournalDir))
		sh(t, tr.orig, `truncate -s -5 .warmfleet-apply/journal.applying`)
		if _, err := Open(context.Background(), tr.orig, Options{}); !errors.Is(err, ErrJournal) {
			t.Errorf("error: got %v, want ErrJournal", err)
		}
		if got := snapshot(t, filepath.Join(tr.orig, layer.JournalDir)); len(got) != len(before) {
			t.Errorf("journal directory: got %v, want all of %v", got, before)
		}
	})
	t.Run("Changed", func(t *testing.T) {
		tr := newTrees(t, script(t, baseScript))
		sh(t, tr.ours, `echo A>a; echo B>b`)
		interrupt(t, tr, "b")
		file := filepath.Join(tr.orig, layer.JournalDir, "journal.applying")
		b, err := os.ReadFile(file)
		must(t, err)
		must(t, os.WriteFile(file, bytes.Replace(b, []byte(`"path":"a"`), []byte(`"path":"c"`), 1), 0o600)) // still the file it was
		if _, err := Open(context.Background(), tr.orig, Options{}); !errors.Is(err, ErrJournal) {
			t.Errorf("error: got %v, want ErrJournal", err)
		}
	})
}

func TestSession_CheckInvalid(t *testing.T) {
	file := &layer.Entry{Type: layer.File, Digest: digestOfBytes(nil)}
	for name, ch := range map[string]layer.Change{
		"Absolute": {Path: "/etc/x", After: file}, "Up": {Path: "a/../../x", After: file}, "Empty": {After: file},
		"Dot": {Path: "./a", After: file}, "Slash": {Path: "a/", After: file}, "NUL": {Path: "a\x00b", After: file},
		"Neither": {Path: "a"}, "NoDigest": {Path: "a", After: &layer.Entry{Type: layer.File}}, "NoRoot": {Path: ".", Before: file},
		"Type": {Path: "a", After: &layer.Entry{Type: "door"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, memDir(t), nil)
			if _, _, err := s.Check(context.Background(), Request{Plan: "P", Changes: []layer.Change{ch}}); !errors.Is(err, ErrInvalid) {
				t.Errorf("error: got %v, want ErrInvalid", err)
			}
		})
	}
	s := open(t, memDir(t), nil)
	if _, _, err := s.Check(context.Background(), Request{Plan: "../P"}); !errors.Is(err, ErrInvalid) {
		t.Errorf("plan: got %v, want ErrInvalid", err)
	}
}

func TestSession_WrongContent(t *testing.T) {
	tr := newTrees(t, script(t, baseScript))
	sh(t, tr.ours, `echo A>a`)
	req := tr.request(t)
	sh(t, tr.ours, `echo B>a`)
	if _, err := apply(tr.orig, req, nil); !errors.Is(err, ErrContent) {
		t.Errorf("error: got %v, want ErrContent", err)
	}
	noJournal(t, tr.orig)
}

func TestSession_Order(t *testing.T) {
	ctx := context.Background()
	s := open(t, memDir(t), nil)
	_, recoverErr := s.Recover(ctx, Forward)
	for name, err := range map[string]error{
		"Stage": s.Stage(ctx, Preview{}), "Commit": s.Commit(ctx), "Finish": s.Finish(ctx), "Recover": recoverErr,
	} {
		if !errors.Is(err, ErrOrder) {
			t.Errorf("%s: got %v, want ErrOrder", name, err)
		}
	}
	must(t, s.Close())
	must(t, s.Close())
}

// A journal that came with a copy of the tree says where things lay in another one: nothing is done by it.
func TestOpen_CopiedJournal(t *testing.T) {
	tr := newTrees(t, script(t, sweepBase))
	sh(t, tr.ours, sweepScript)
	killed := errors.New("killed")
	dead := false
	s := open(t, tr.orig, func(point string) error {
		dead = dead || point == "do 000003"
		if dead {
			return killed
		}
		return nil
	})
	p, _, err := s.Check(context.Background(), tr.request(t))
	must(t, err)
	must(t, s.Stage(context.Background(), p))
	if err := s.Commit(context.Background()); !errors.Is(err, killed) {
		t.Fatalf("commit: got %v", err)
	}
	must(t, s.Close())
	sh(t, filepath.Dir(tr.orig), `cp -a orig copy`)
	dir := filepath.Join(filepath.Dir(tr.orig), "copy")
	before := snapshot(t, dir)
	if _, err := Open(context.Background(), dir, Options{}); !errors.Is(err, ErrForeign) {
		t.Errorf("open the copy: got %v, want ErrForeign", err)
	}
	sameTrees(t, "copy", snapshot(t, dir), before)
	if _, pending := open(t, tr.orig, nil).Pending(); !pending {
		t.Error("the journal is not pending where it was made")
	}
}
