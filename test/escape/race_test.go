package escape

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/warmfleet/warmfleet/internal/isolate"
	"github.com/warmfleet/warmfleet/internal/sandboxtest"
)

// filing are the file calls that steps and sessions have.
type filing interface {
	Start(ctx context.Context, c isolate.Command) (isolate.Detached, error)
	BaseEnv() []string
	ReadFile(ctx context.Context, path string, limit int64) ([]byte, fs.FileMode, error)
	WriteFile(ctx context.Context, w isolate.FileWrite) error
	ChangeFiles(ctx context.Context, list []isolate.FileChange) error
}

// Case J5: file calls stay inside while a process of the sandbox swaps a directory, and a file, for links that lead out.
// Without namespaces it is the calls alone that see to it.
func TestFileCalls_RaceCaseJ5(t *testing.T) {
	t.Run("Sandbox", func(t *testing.T) {
		bed := sandboxtest.New(t)
		chain, _ := bed.Base(t, scratch(t))
		race(t, bed.Sandbox(t, chain))
	})
	t.Run("Bare", func(t *testing.T) {
		i, err := isolate.Start(t.Context(), isolate.Config{Rung: isolate.RungBare})
		must(t, err)
		t.Cleanup(func() { i.Close() })
		must(t, i.AttachDir(t.Context(), scratch(t)))
		race(t, i)
	})
}

func race(t *testing.T, s filing) {
	t.Helper()
	out := filepath.Join(scratch(t), "out")
	must(t, os.Mkdir(out, 0o755))
	victim := filepath.Join(out, "victim")
	must(t, os.WriteFile(victim, []byte(before), 0o644))
	swapper := fmt.Sprintf(`mkdir real; echo inside >real/victim
while :; do rm -rf d; cp -r real d; rm -rf d; ln -s %[1]s d; rm -f f; echo inside >f; ln -sf %[2]s f; ln -sfn ../../../../../../../..%[1]s u; rm -f u; mkdir u; rmdir u; done`, out, victim)
	if _, err := s.Start(t.Context(), isolate.Command{Argv: []string{"/bin/bash", "-c", swapper}, Env: s.BaseEnv()}); err != nil {
		t.Fatal(err)
	}
	done := map[string]int{}
	for i := range 1000 {
		name := []string{"d/victim", "f", "u/victim", "d/new"}[i%4]
		if s.WriteFile(t.Context(), isolate.FileWrite{Path: name, Content: []byte("changed")}) == nil {
			done["written"]++
		}
		if content, _, err := s.ReadFile(t.Context(), name, 1<<10); err == nil {
			done["read"]++
			if string(content) == before {
				t.Fatalf("%s: the host's file was read", name)
			}
		}
		change := isolate.FileChange{Path: name, Mode: 0o644, Content: []byte("changed")}
		if s.ChangeFiles(t.Context(), []isolate.FileChange{change}) == nil {
			done["changed"]++
		}
	}
	if done["written"] == 0 || done["read"] == 0 {
		t.Errorf("of 1000 calls each: %v, want some that found the directory there", done)
	}
	if got, err := os.ReadFile(victim); err != nil || string(got) != before {
		t.Errorf("outside: got %q, %v", got, err)
	}
	if entries, err := os.ReadDir(out); err != nil || len(entries) != 1 {
		t.Errorf("outside: got %v, %v, want the one file", entries, err)
	}
}
