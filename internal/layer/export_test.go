package layer

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// packChain packs layers given by their specs, bottom first.
func packChain(t testing.TB, layers ...[]tarSpec) (Chain, []Source) {
	t.Helper()
	c := newTarCache(t)
	var chain Chain
	var sources []Source
	for _, specs := range layers {
		l := mustLayer(t, c, specs)
		p, packed := mustPack(t, c, l)
		chain = append(chain, l)
		sources = append(sources, Source{Name: p.Name, Open: func() (io.ReadCloser, error) {
			return io.NopCloser(bytes.NewReader(packed)), nil
		}})
	}
	return chain, sources
}

func mustExport(t testing.TB, sources []Source) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := ExportWith(context.Background(), sources, &b, ExportOptions{UID: os.Getuid(), GID: os.Getgid(), TempDir: emptyDir(t)}); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// emptyDir is a temporary directory that must be empty again when the test ends.
func emptyDir(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	t.Cleanup(func() {
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("left in the temporary directory: %v, %v", left, err)
		}
	})
	return dir
}

func tarNames(t testing.TB, b []byte) []string {
	t.Helper()
	var names []string
	r := tar.NewReader(bytes.NewReader(b))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return names
		}
		if err != nil {
			t.Fatal(err)
		}
		line := h.Name
		if h.Typeflag == tar.TypeLink {
			line += " -> " + h.Linkname
		}
		if h.Typeflag == tar.TypeReg {
			content, err := io.ReadAll(r)
			if err != nil {
				t.Fatal(err)
			}
			line += " = " + string(content)
		}
		names = append(names, line)
	}
}

func TestExport_MergesLayers(t *testing.T) {
	t.Parallel()
	root := dirSpec(".", 0o755)
	opaque := func(p Path) tarSpec { return dirSpec(p, 0o700).with(func(s *tarSpec) { s.Opaque = true }) }
	for name, tc := range map[string]struct {
		layers [][]tarSpec
		want   []string
	}{
		"None":          {nil, nil},
		"EmptyLayer":    {[][]tarSpec{{root}}, []string{"./"}},
		"UpperReplaces": {[][]tarSpec{{root, fileSpec("f", "1")}, {root, fileSpec("f", "2")}}, []string{"./", "f = 2"}},
		"DirectoriesMerge": {
			[][]tarSpec{{root, dirSpec("d", 0o755), fileSpec("d/1", "1")}, {root, dirSpec("d", 0o700), fileSpec("d/2", "2")}},
			[]string{"./", "d/", "d/1 = 1", "d/2 = 2"},
		},
		"Whiteout": {
			[][]tarSpec{{root, dirSpec("d", 0o755), fileSpec("d/1", "1"), fileSpec("f", "1")}, {root, goneSpec("d"), goneSpec("f")}},
			[]string{"./"},
		},
		"WhiteoutOfNothing": {[][]tarSpec{{root}, {root, goneSpec("d")}}, []string{"./"}},
		"DeletedThenMadeAgain": {
			[][]tarSpec{{root, dirSpec("d", 0o755), fileSpec("d/old", "1")}, {root, goneSpec("d")}, {root, dirSpec("d", 0o755), fileSpec("d/new", "2")}},
			[]string{"./", "d/", "d/new = 2"},
		},
		"Opaque": {
			[][]tarSpec{{root, dirSpec("d", 0o755), fileSpec("d/old", "1")}, {root, opaque("d"), fileSpec("d/new", "2")}},
			[]string{"./", "d/", "d/new = 2"},
		},
		"OpaqueEmpty": {
			[][]tarSpec{{root, dirSpec("d", 0o755), fileSpec("d/old", "1")}, {root, opaque("d")}, {root, dirSpec("d", 0o755)}},
			[]string{"./", "d/"},
		},
		"OpaqueRoot": {
			[][]tarSpec{{root, fileSpec("f", "1")}, {opaque("."), fileSpec("g", "2")}},
			[]string{"./", "g = 2"},
		},
		"FileOverDirectory": {
			[][]tarSpec{{root, dirSpec("d", 0o755), fileSpec("d/1", "1")}, {root, fileSpec("d", "2")}},
			[]string{"./", "d = 2"},
		},
		"DirectoryOverFile": {
			[][]tarSpec{{root, fileSpec("d", "1")}, {root, dirSpec("d", 0o755), fileSpec("d/2", "2")}},
			[]string{"./", "d/", "d/2 = 2"},
		},
		"FileBetweenDirectories": {
			[][]tarSpec{{root, dirSpec("d", 0o755), fileSpec("d/1", "1")}, {root, fileSpec("d", "2")}, {root, dirSpec("d", 0o755)}},
			[]string{"./", "d/"},
		},
		"FirstNameReplaced": {
			[][]tarSpec{{root, fileSpec("a", "group"), linkSpec("b", "a"), linkSpec("c", "a")}, {root, fileSpec("a", "new")}},
			[]string{"./", "a = new", "b = group", "c -> b"},
		},
		"FirstNameDeleted": {
			[][]tarSpec{{root, fileSpec("a", "group"), linkSpec("b", "a"), linkSpec("c", "a")}, {root, goneSpec("a")}},
			[]string{"./", "b = group", "c -> b"},
		},
		"LastNameReplaced": {
			[][]tarSpec{{root, fileSpec("a", "group"), linkSpec("b", "a")}, {root, fileSpec("b", "new")}},
			[]string{"./", "a = group", "b = new"},
		},
		"GroupOverGroup": {
			[][]tarSpec{
				{root, fileSpec("a", "old"), linkSpec("b", "a"), linkSpec("c", "a")},
				{root, fileSpec("b", "new"), linkSpec("c", "b")},
			},
			[]string{"./", "a = old", "b = new", "c -> b"},
		},
		"RealNames": {
			[][]tarSpec{{root, fileSpec(".warmfleet.b", "2"), fileSpec(".wh..wh..opq", "1"), linkSpec(".wh.a", ".wh..wh..opq")}},
			[]string{"./", ".warmfleet.b = 2", ".wh..wh..opq = 1", ".wh.a -> .wh..wh..opq"},
		},
		"RealNamesDeleted": {
			[][]tarSpec{{root, fileSpec(".wh.a", "1"), fileSpec("a", "2")}, {root, goneSpec(".wh.a")}},
			[]string{"./", "a = 2"},
		},
		"DirectoriesAreFollowedByTheirContent": {
			[][]tarSpec{{root, dirSpec("a", 0o755), fileSpec("a/x", ""), fileSpec("b", "")}, {root, fileSpec("a-b", ""), fileSpec("a0", "")}},
			[]string{"./", "a/", "a/x = ", "a-b = ", "a0 = ", "b = "},
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, sources := packChain(t, tc.layers...)
			if diff := cmp.Diff(tc.want, tarNames(t, mustExport(t, sources))); diff != "" {
				t.Errorf("export differs (-want +got):\n%s", diff)
			}
		})
	}
}

// TestExport_AgreesWithTree compares the two ways of merging a chain.
func TestExport_AgreesWithTree(t *testing.T) {
	upper := []tarSpec{
		dirSpec(".", 0o700), goneSpec("a"), goneSpec("d-e"), dirSpec("d", 0o700), goneSpec("d/new\nline"), fileSpec("d/-rf", "2"),
		fileSpec("link1", "replaced"), dirSpec("opaque", 0o711), fileSpec("opaque/too", "2"), fileSpec("closed", "a file now"),
	}
	chain, sources := packChain(t, oddTree(), upper)
	var want, got []Path
	if err := NewTree(chain).Walk(func(e Entry) error {
		want = append(want, e.Path)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	r := tar.NewReader(bytes.NewReader(mustExport(t, sources)))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, Path(h.Name))
	}
	for i, p := range got {
		got[i] = Path(filepath.Clean(string(p)))
	}
	slices.SortFunc(got, comparePaths)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("paths differ (-Tree +Export):\n%s", diff)
	}
}

// TestExport_IsRestoredByTar takes the odd tree through GNU tar, without what GNU tar 1.34 cannot do: paths beyond PATH_MAX,
// and the last second of 1969, which it reads as the first of 1970.
func TestExport_IsRestoredByTar(t *testing.T) {
	var specs, want []tarSpec
	for _, s := range oddTree() {
		if len(s.Path) > unix.PathMax || s.MTime.Unix() == -1 {
			continue
		}
		specs = append(specs, s)
		if !s.Whiteout {
			s.Opaque = false
			want = append(want, s)
		}
	}
	from := newTarCache(t)
	_, sources := packChain(t, specs)
	dir := filepath.Join(t.TempDir(), "restored")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := RemoveTree(dir); err != nil {
			t.Error(err)
		}
	})
	cmd := exec.Command("tar", "--warning=no-timestamp", "--xattrs", "-xpSf", "-", "-C", dir)
	cmd.Stdin = bytes.NewReader(mustExport(t, sources))
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Fatalf("tar: %v: %s", err, out)
	}
	wantTree := onDisk(t, mustLayer(t, from, want).Dir, from.opt, nil)
	got := onDisk(t, dir, Options{Owner: os.Getuid(), Trusted: true}, nil)
	for i := range wantTree {
		if len(wantTree[i].Xattrs) == 0 {
			wantTree[i].Xattrs = nil
		}
	}
	if diff := diffTrees(got, wantTree); diff != "" {
		t.Errorf("restored tree differs (-want +got):\n%s", diff)
	}
	if os.Getuid() == 0 {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(dir, "foreign"), &st); err != nil || st.Uid != 0 || st.Gid != 1<<31 {
			t.Errorf("foreign is owned by %d:%d, %v, want 0:%d", st.Uid, st.Gid, err, 1<<31)
		}
	}
}

func TestExport_OwnerOfSelf(t *testing.T) {
	_, sources := packChain(t, []tarSpec{
		dirSpec(".", 0o755), fileSpec("mine", ""),
		fileSpec("theirs", "").with(func(s *tarSpec) { s.UID, s.GID = 0, 7 }),
	})
	var b bytes.Buffer
	if err := ExportWith(context.Background(), sources, &b, ExportOptions{UID: 1234, GID: 0x70000001}); err != nil {
		t.Fatal(err)
	}
	var got [][2]int
	r := tar.NewReader(&b)
	for range 3 {
		h, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, [2]int{h.Uid, h.Gid})
	}
	if want := [][2]int{{1234, 0x70000001}, {1234, 0x70000001}, {0, 7}}; !slices.Equal(got, want) {
		t.Errorf("owners %v, want %v", got, want)
	}
}

func TestExport_IsDeterministic(t *testing.T) {
	_, sources := packChain(t, oddTree(), []tarSpec{dirSpec(".", 0o700), fileSpec("a", "2")})
	if !bytes.Equal(mustExport(t, sources), mustExport(t, sources)) {
		t.Error("two exports of one chain differ")
	}
}

func TestExport_WritesNothingOfABadChain(t *testing.T) {
	_, sources := packChain(t, smallTree(), smallTree())
	good := sources[1].Open
	for name, tc := range map[string]struct {
		open func() (io.ReadCloser, error)
		want error
	}{
		"Truncated": {func() (io.ReadCloser, error) {
			r, err := good()
			return struct {
				io.Reader
				io.Closer
			}{io.LimitReader(r, 100), r}, err
		}, ErrCorrupt},
		"Missing": {func() (io.ReadCloser, error) { return nil, errTarTest }, errTarTest},
	} {
		var b bytes.Buffer
		sources[1].Open = tc.open
		err := ExportWith(context.Background(), sources, &b, ExportOptions{TempDir: emptyDir(t)})
		if !errors.Is(err, tc.want) || b.Len() > 0 {
			t.Errorf("%s: %v and %d bytes written, want %v and none", name, err, b.Len(), tc.want)
		}
	}
	sources[1].Open = good
	if err := Export(context.Background(), sources, &failingWriter{left: 700}); !errors.Is(err, errTarTest) {
		t.Errorf("Export to a failing writer: %v, want its error", err)
	}
}
