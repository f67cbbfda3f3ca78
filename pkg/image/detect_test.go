package image

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// tree makes a repository's files. A content that begins with "-> " is a link, "dir" an empty directory, "fifo" a pipe.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, name)
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		target, isLink := strings.CutPrefix(content, "-> ")
		switch {
		case err != nil:
		case isLink:
			err = os.Symlink(target, path)
		case content == "dir":
			err = os.Mkdir(path, 0o755)
		case content == "fifo":
			err = syscall.Mkfifo(path, 0o644)
		default:
			err = os.WriteFile(path, []byte(content), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// fromFS reads the files of a tree, which must not follow links out of it, as that of an os.Root does not.
func fromFS(tree fs.FS) Reader {
	return func(path string, limit int64) ([]byte, error) {
		info, err := fs.Stat(tree, path) // before it is opened: a pipe would wait for a writer
		if err == nil && !info.Mode().IsRegular() {
			err = ErrNoFile
		}
		if err != nil {
			return nil, err
		}
		f, err := tree.Open(path)
		if err != nil {
			return nil, err
		}
		defer func() { _ = f.Close() }()
		b, err := io.ReadAll(io.LimitReader(f, limit+1))
		if err == nil && int64(len(b)) > limit {
			err = ErrTooLarge
		}
		return b, err
	}
}

// detect looks at a tree through a root that no link leads out of, as a sandbox does.
func detect(t *testing.T, dir string) (Explanation, error) {
	t.Helper()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	return Detect(fromFS(root.FS()))
}

const (
	own       = ".warmfleet/image.yaml"
	container = ".devcontainer/devcontainer.json"
)

// The order is: the repository's own file, a devcontainer that has commands, lock files.
func TestDetect(t *testing.T) {
	long := strings.Repeat("x", maxLock+1)
	for _, tc := range []struct {
		name   string
		files  map[string]string
		chosen []string
		recipe Recipe
	}{
		{"Nothing", map[string]string{"README": "x"}, nil, Recipe{}},
		{
			"OwnFileBeforeAll",
			map[string]string{own: "setup: [make]\nwarm: [make test]\nenv: {A: b}\n", container: `{"onCreateCommand":"x"}`, "go.sum": ""},
			[]string{own},
			Recipe{Setup: []string{"make"}, Warm: []string{"make test"}, Env: map[string]string{"A": "b"}},
		},
		{"OwnEmptyFileIsTheCloneAlone", map[string]string{own: "# nothing to do\n", "go.sum": ""}, []string{own}, Recipe{}},
		{
			"DevcontainerBeforeLocks",
			map[string]string{
				container: "\xef\xbb\xbf{ // text\n \"onCreateCommand\": \"a // b\", /* two\nlines */\n \"updateContentCommand\": [\"echo\", \"it's\", \"$HOME\",],\n \"postCreateCommand\": {\"z\": \"last\", \"y\": [\"first\"]},\n \"postStartCommand\": \"never\", \"containerEnv\": {\"A\": \"1\", \"B\": \"${localEnv:B}\"},\n}",
				"go.sum":  "",
			},
			[]string{container},
			Recipe{Setup: []string{"a // b", `'echo' 'it'\''s' '$HOME'`, "'first'", "last"}, Env: map[string]string{"A": "1"}},
		},
		{"DevcontainerAtTheTop", map[string]string{".devcontainer.json": `{"postCreateCommand":"make"}`}, []string{".devcontainer.json"}, Recipe{Setup: []string{"make"}}},
		{"DevcontainerWithoutCommandsIsPassedOver", map[string]string{container: `{"image":"x"}`, ".devcontainer.json": `{"postCreateCommand":"make"}`}, []string{".devcontainer.json"}, Recipe{Setup: []string{"make"}}},
		{"DevcontainersWithoutCommandsThenLocks", map[string]string{container: `{"image":"x","onCreateCommand":null}`, ".devcontainer.json": `{"postCreateCommand":" "}`, "mix.lock": ""}, []string{"mix.lock"}, Recipe{Setup: []string{"mix deps.get"}, Warm: []string{"mix compile"}}},
		{
			"OneLockOfEachKind",
			map[string]string{"package-lock.json": "{}", "yarn.lock": "", "Gemfile.lock": "x", "sub/Cargo.lock": ""},
			[]string{"yarn.lock", "Gemfile.lock"},
			Recipe{Setup: []string{"export YARN_ENABLE_GLOBAL_CACHE=0; corepack yarn install --immutable || yarn install --frozen-lockfile", "bundle config set --local path vendor/bundle && bundle install"}},
		},
		{"HugeLockIsThere", map[string]string{"package-lock.json": long}, []string{"package-lock.json"}, Recipe{Setup: []string{"npm ci"}}},
		{"LinkInside", map[string]string{"package-lock.json": "-> real/lock", "real/lock": "{}"}, []string{"package-lock.json"}, Recipe{Setup: []string{"npm ci"}}},
		{"DirectoriesOfTheseNames", map[string]string{own: "dir", container: "dir", "yarn.lock": "dir", "go.sum": "x"}, []string{"go.sum"}, Recipe{}},
		{"CrateLock", map[string]string{"Cargo.lock": ""}, []string{"Cargo.lock"}, Recipe{Warm: []string{"cargo build --locked"}}},
		{"FilesInPlaceOfDirectories", map[string]string{".warmfleet": "x", ".devcontainer": "x"}, nil, Recipe{}},
		{"PipesAndLinksToNowhere", map[string]string{own: "fifo", container: "-> devcontainer.json", ".devcontainer.json": "-> gone", "go.sum": "fifo"}, nil, Recipe{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := detect(t, tree(t, tc.files))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(got.Chosen, tc.chosen); diff != "" {
				t.Errorf("chosen (-got +want):\n%s", diff)
			}
			if diff := cmp.Diff(got.Recipe, tc.recipe); diff != "" {
				t.Errorf("recipe (-got +want):\n%s", diff)
			}
			if len(got.Why) == 0 {
				t.Error("no word of why")
			}
		})
	}
}

// What a repository says wrongly is refused in one line that names the file, and the line where there is one.
func TestDetect_Refusals(t *testing.T) {
	many := "setup: [" + strings.Repeat("a,", maxSteps) + "a]"
	var env strings.Builder
	for i := range maxSteps + 1 {
		fmt.Fprintf(&env, "%q:\"x\",", fmt.Sprint("V", i))
	}
	for _, tc := range []struct{ name, file, content, says string }{
		{"UnknownKey", own, "setup: [a]\nsteup: [b]\n", "steup"},
		{"NotYAML", own, "setup: [", own},
		{"NoList", own, "setup: make\n", own},
		{"TwoDocuments", own, "setup: [a]\n---\nsetup: [b]\n", "one document"},
		{"TooManySteps", own, many, "101 steps, the limit is 100"},
		{"EmptyStep", own, "setup: [a, ' ']", "step 2"},
		{"LongStep", own, "warm: ['" + strings.Repeat("x", maxStep+1) + "']", "step 1"},
		{"NULInStep", own, `setup: ["a\0b"]`, "step 1"},
		{"EnvName", own, "env: {'A=B': c}", `env "A=B"`},
		{"Huge", own, strings.Repeat("#\n", maxFile), "more than 262144 bytes"},
		{"AliasBomb", own, "env: &a {A: b}\nsetup: *a\n", own},
		{"NotJSON", container, "{\n\"onCreateCommand\": oops\n}", container + ":2"},
		{"CommentWithoutEnd", container, "{ /* \"onCreateCommand\": \"x\" }", container},
		{"CommandOfNumbers", container, "{\n\n\"onCreateCommand\": 4}", container},
		{"ObjectInObject", container, `{"onCreateCommand":{"a":{"b":"c"}}}`, "object in an object"},
		{"HugeDevcontainer", ".devcontainer.json", strings.Repeat(" ", maxFile+1), "more than 262144 bytes"},
		{"ManyVariables", container, `{"onCreateCommand":"x","containerEnv":{` + strings.TrimSuffix(env.String(), ",") + `}}`, "101 variables"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e, err := detect(t, tree(t, map[string]string{tc.file: tc.content}))
			if e.Refused != tc.file && !strings.Contains(tc.says, "262144") {
				t.Errorf("refused %q, want %q", e.Refused, tc.file)
			}
			if !errors.Is(err, ErrRecipe) || !strings.Contains(err.Error(), tc.says) || !strings.Contains(err.Error(), tc.file) {
				t.Fatalf("got %v, want ErrRecipe that says %q", err, tc.says)
			}
			if strings.Contains(err.Error(), "\n") || len(err.Error()) > 1000 {
				t.Errorf("got %d bytes, want one short line: %.300q", len(err.Error()), err)
			}
		})
	}
}

// A file that only another may read is told, not passed over: the recipe would be another without a word.
func TestDetect_Unreadable(t *testing.T) {
	_, err := Detect(func(path string, _ int64) ([]byte, error) {
		return nil, &os.PathError{Op: "open", Path: path, Err: syscall.EACCES}
	})
	if !errors.Is(err, ErrRecipe) || !errors.Is(err, os.ErrPermission) {
		t.Errorf("got %v, want ErrRecipe for want of permission", err)
	}
}

func FuzzParseDevcontainer(f *testing.F) {
	f.Add([]byte(`{ // c` + "\n" + `"onCreateCommand": ["a", {"b": "c"},], /* d */ }`))
	f.Add([]byte(`{"containerEnv":{"A":"\""},,}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if got := uncomment(b); len(got) > len(b) || strings.Count(string(got), "\n") != strings.Count(string(b), "\n") {
			t.Errorf("comments of %q are not blanked out in place: %q", b, got)
		}
		_, err := parseDevcontainer("f", b)
		if err != nil && !errors.Is(err, ErrRecipe) {
			t.Errorf("%v is not ErrRecipe", err)
		}
	})
}
