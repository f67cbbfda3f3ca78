package image

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// dirBox runs commands in a directory of this machine.
type dirBox struct {
	dir string
	ran *[]string // the last word of each command
}

func newBox(t *testing.T, files map[string]string) dirBox {
	t.Helper()
	return dirBox{dir: tree(t, files), ran: new([]string)}
}

// Run implements Box.
func (b dirBox) Run(ctx context.Context, c Command) (Ended, error) {
	*b.ran = append(*b.ran, c.Argv[len(c.Argv)-1])
	limited, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	cmd := exec.CommandContext(limited, c.Argv[0], c.Argv[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = b.dir, c.Stdout, c.Stderr
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + b.dir}, c.Env...)
	if len(c.Secrets) > 0 {
		dir, err := os.MkdirTemp("", "secrets")
		if err != nil {
			return Ended{}, err
		}
		defer func() { _ = os.RemoveAll(dir) }()
		for name, value := range c.Secrets {
			if err := os.WriteFile(filepath.Join(dir, name), value, 0o400); err != nil {
				return Ended{}, err
			}
		}
		cmd.Env = append(cmd.Env, "WARMFLEET_SECRETS="+dir)
	}
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return Ended{}, context.Cause(ctx)
	case limited.Err() != nil:
		return Ended{Signal: "KILL", Cause: "timeout"}, nil
	case errors.As(err, &exit) && exit.ExitCode() < 0:
		return Ended{Signal: "KILL", Cause: "signal"}, nil
	case err != nil && exit == nil:
		return Ended{Cause: "start", Why: err.Error()}, nil
	}
	code := cmd.ProcessState.ExitCode()
	return Ended{ExitCode: &code, Cause: "exit"}, nil
}

// Read implements Box.
func (b dirBox) Read(_ context.Context, path string, limit int64) ([]byte, error) {
	root, err := os.OpenRoot(b.dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	return fromFS(root.FS())(path, limit)
}

func (b dirBox) job(r Recipe) Job {
	if r.Timeout == 0 {
		r.Timeout = time.Minute
	}
	return Job{Box: b, Recipe: r, Shell: []string{"/bin/sh", "-eu", "-c"}}
}

// steps are the commands that were run, without those of the closing check.
func (b dirBox) steps() []string {
	return slices.DeleteFunc(slices.Clone(*b.ran), func(s string) bool { return s == script })
}

func TestBuild(t *testing.T) {
	b := newBox(t, nil)
	j := b.job(Recipe{Setup: []string{"echo $A >a", "cp a b"}, Warm: []string{"echo first; echo second; exit 3", "rm a"}, Env: map[string]string{"A": "x y"}})
	synced := false
	j.Sync = func(context.Context) error { synced = len(*b.ran) == 0; return nil }
	got, err := Build(t.Context(), j)
	if err != nil {
		t.Fatal(err)
	}
	if !synced {
		t.Error("the sync was not before everything else")
	}
	if diff := cmp.Diff(got.Warnings, []string{"image: warm step 1 of 2 (echo first; echo second; exit 3): exit code 3: first | second"}); diff != "" {
		t.Errorf("warnings (-got +want):\n%s", diff)
	}
	if diff := cmp.Diff(b.steps(), slices.Concat(j.Recipe.Setup, j.Recipe.Warm)); diff != "" {
		t.Errorf("steps (-got +want):\n%s", diff)
	}
	if text, err := os.ReadFile(filepath.Join(b.dir, "b")); string(text) != "x y\n" {
		t.Errorf("b holds %q, %v", text, err)
	}
}

// A setup step that fails ends the build at once, with what, how and the last lines, in one.
func TestBuild_SetupFails(t *testing.T) {
	for _, tc := range []struct{ name, step, says string }{
		{"Exit", "echo one; echo two >&2; exit 3", "exit code 3: one | two"},
		{"Signal", "kill -9 $$", "ended by signal KILL"},
		{"Hangs", "echo begun; exec sleep 1000", "not done after 500ms, its timeout: begun"},
		{"OnlyTheLastLines", "for i in 1 2 3 4 5 6 7; do echo line $i; done; exit 1", "exit code 1: line 3 | line 4 | line 5 | line 6 | line 7"},
		{"NoTerminalCodes", `printf 'a\033[31mb\r\nc\007\n\377'; exit 1`, "exit code 1: a[31mb | c | ?"},
		{"Long", "head -c 200000 /dev/zero | tr '\\0' z; exit 1", "exit code 1: zzz"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBox(t, nil)
			_, err := Build(t.Context(), b.job(Recipe{Setup: []string{"true", tc.step, "never"}, Warm: []string{"never"}, Timeout: 500 * time.Millisecond}))
			var failed *StepError
			if !errors.As(err, &failed) || failed.N != 2 || failed.Of != 3 {
				t.Fatalf("got %v, want step 2 of 3", err)
			}
			if got := err.Error(); !strings.Contains(got, "image: setup step 2 of 3 (") || !strings.Contains(got, tc.says) || strings.ContainsAny(got, "\n\r\x1b") || len(got) > 1300 {
				t.Errorf("got %.400q, want one line that says %q", got, tc.says)
			}
			if diff := cmp.Diff(b.steps(), []string{"true", tc.step}); diff != "" {
				t.Errorf("steps (-got +want):\n%s", diff)
			}
		})
	}
	b := newBox(t, nil)
	j := b.job(Recipe{Setup: []string{"true"}})
	j.Shell = []string{"/nowhere/sh"}
	if _, err := Build(t.Context(), j); err == nil || !strings.Contains(err.Error(), "could not be started: fork/exec /nowhere/sh") {
		t.Errorf("got %v, want why it could not be started", err)
	}
}

// A failure to sync, and the end of the context, are told as they are.
func TestBuild_CutShort(t *testing.T) {
	b := newBox(t, nil)
	j := b.job(Recipe{Setup: []string{"sleep 1000"}})
	unsynced := errors.New("no route")
	j.Sync = func(context.Context) error { return unsynced }
	if _, err := Build(t.Context(), j); !errors.Is(err, unsynced) || len(*b.ran) > 0 {
		t.Errorf("got %v after %v, want that it could not be synced", err, *b.ran)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	drained := errors.New("drained")
	j.Sync = func(context.Context) error { cancel(drained); return nil }
	if _, err := Build(ctx, j); !errors.Is(err, drained) {
		t.Errorf("got %v, want the cause", err)
	}
}

// Steps that need a secret find it as a file; what they print is masked in what the build says.
func TestBuild_Secrets(t *testing.T) {
	const value = "s3cr3t/canary=42"
	b := newBox(t, nil)
	j := b.job(Recipe{
		Setup: []string{`cmp "$WARMFLEET_SECRETS/TOKEN" "$WARMFLEET_SECRETS/TOKEN"`},
		Warm:  []string{`cat "$WARMFLEET_SECRETS/TOKEN"; base64 <"$WARMFLEET_SECRETS/TOKEN"; exit 1`, "echo " + value + "; exit 1"},
	})
	j.Secrets = map[string][]byte{"TOKEN": []byte(value)}
	got, err := Build(t.Context(), j)
	if err != nil || len(got.Warnings) != 2 {
		t.Fatalf("got %q, %v, want two warnings", got.Warnings, err)
	}
	for _, w := range got.Warnings {
		if strings.Contains(w, value) || strings.Contains(w, "czNjcjN0L2Nhbm") || !strings.Contains(w, "***") {
			t.Errorf("warning %q", w)
		}
	}
}

// The recipe of a repository is found once its commit is there. One that has changed since the last image stops the build before
// its first step.
func TestBuild_Auto(t *testing.T) {
	b := newBox(t, nil)
	j := b.job(Recipe{Env: map[string]string{"A": "pool", "C": "pool"}})
	j.Auto = true
	say := func(text string) func(context.Context) error {
		return func(context.Context) error {
			return errors.Join(os.MkdirAll(filepath.Join(b.dir, ".warmfleet"), 0o755), os.WriteFile(filepath.Join(b.dir, File), []byte(text), 0o644))
		}
	}
	j.Sync = say("setup: ['echo $A $B $C >out']\nenv: {A: repo, B: repo}\n")
	first, err := Build(t.Context(), j)
	if err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(b.dir, "out")); string(text) != "pool repo pool\n" {
		t.Errorf("out holds %q, %v: the pool's environment wins", text, err)
	}
	j.Steps = first.Steps
	if again, err := Build(t.Context(), j); err != nil || again.Steps != first.Steps {
		t.Errorf("the same again: %v", err)
	}
	before := len(*b.ran)
	j.Sync = say("setup: ['echo other >out']\n")
	if _, err := Build(t.Context(), j); !errors.Is(err, ErrSteps) || len(*b.ran) != before {
		t.Errorf("got %v after %d commands, want ErrSteps before any", err, len(*b.ran)-before)
	}
	j.Steps, j.Sync = "", say("setup: {}\n")
	if _, err := Build(t.Context(), j); !errors.Is(err, ErrRecipe) {
		t.Errorf("got %v, want ErrRecipe", err)
	}
}
