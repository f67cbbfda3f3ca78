package image

import (
	"errors"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

// Every candidate is told with what came of it.
func TestLook_TellsOfEachFile(t *testing.T) {
	const dev, dev2 = ".devcontainer/devcontainer.json", ".devcontainer.json"
	for name, tc := range map[string]struct {
		tree map[string]string
		want map[string]string // what is not named is not found
		err  error
	}{
		"Nothing": {},
		"ImageFile": {
			tree: map[string]string{File: "setup: [make]\n", dev: "{}", "go.sum": ""},
			want: map[string]string{File: "used", dev: "passed_over", "go.sum": "passed_over"},
		},
		"DevcontainerWithoutCommands": {
			tree: map[string]string{dev: "{}", dev2: `{"postCreateCommand": "make"}`, "go.sum": ""},
			want: map[string]string{dev: "passed_over: has no onCreateCommand", dev2: "used", "go.sum": "passed_over"},
		},
		"Locks": {
			tree: map[string]string{"yarn.lock": "", "package-lock.json": "", "go.sum": ""},
			want: map[string]string{
				"yarn.lock": "used: yarn installs", "go.sum": "used", "bun.lock": "not_looked_at", "npm-shrinkwrap.json": "not_looked_at",
				"package-lock.json": "not_looked_at",
			},
		},
		"ImageFileRefused": {
			tree: map[string]string{File: "setup: make\n", "go.sum": ""},
			want: map[string]string{File: "refused: image: " + File, "go.sum": "passed_over"}, err: ErrRecipe,
		},
		"DevcontainerRefused": {
			tree: map[string]string{dev: "{", "go.sum": ""},
			want: map[string]string{dev: "refused: image: " + dev + ":1", "go.sum": "passed_over"}, err: ErrRecipe,
		},
		"TooLarge": {
			tree: map[string]string{dev: strings.Repeat(" ", maxFile+1)},
			want: map[string]string{dev: "refused: image: read " + dev}, err: ErrRecipe,
		},
	} {
		t.Run(name, func(t *testing.T) {
			tree := fstest.MapFS{}
			for file, content := range tc.tree {
				tree[file] = &fstest.MapFile{Data: []byte(content)}
			}
			_, looked, err := Look(fromFS(tree))
			if !errors.Is(err, tc.err) {
				t.Errorf("got error %v, want %v", err, tc.err)
			}
			var names []string
			for _, l := range looked {
				names = append(names, l.File)
				want := tc.want[l.File]
				if got := strings.TrimSuffix(string(l.Result)+": "+l.Why, ": "); want != "" && !strings.HasPrefix(got, want) {
					t.Errorf("%s: got %q, want %q", l.File, got, want)
				}
				if want == "" && l.Result != NotThere && name != "TooLarge" {
					t.Errorf("%s: got %s, want %s", l.File, l.Result, NotThere)
				}
			}
			if d := cmp.Diff(names, Candidates()); d != "" {
				t.Errorf("files (-got +want):\n%s", d)
			}
		})
	}
}
