package isolate_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"

	"github.com/warmfleet/warmfleet/internal/isolate"
)

// eachRung runs a test with a workspace in namespaces and without.
func eachRung(t *testing.T, test func(*testing.T, *isolate.Init)) {
	t.Run("Namespaces", func(t *testing.T) { test(t, newBox(t, isolate.Config{}).Init) })
	t.Run("Bare", func(t *testing.T) {
		i, _ := newBare(t)
		test(t, i)
	})
	eachFence(t, func(t *testing.T, r isolate.Rung) {
		i, _ := newFenced(t, isolate.Config{Rung: r})
		test(t, i)
	})
}

// readerFunc counts as a reader that is nothing else.
type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestInit_Exec_Stdin(t *testing.T) {
	eachRung(t, func(t *testing.T, i *isolate.Init) {
		big := bytes.Repeat([]byte("0123456789abcdef"), 1<<18)
		broken := io.MultiReader(strings.NewReader("part"), readerFunc(func([]byte) (int, error) { return 0, errors.New("no more") }))
		for _, c := range []struct {
			name, script string
			stdin        io.Reader
			want         string
		}{
			{"Nil", "cat | wc -c", nil, "0\n"},
			{"Empty", "cat | wc -c", strings.NewReader(""), "0\n"},
			{"Text", "cat", strings.NewReader("a\x00b\n"), "a\x00b\n"},
			{"MoreThanAPipe", "sha256sum", bytes.NewReader(big), fmt.Sprintf("%x  -\n", sha256.Sum256(big))},
			{"ReadInPart", "head -c 3", bytes.NewReader(big), "012"},
			{"NotRead", "echo done", bytes.NewReader(big), "done\n"},
			{"ReaderFails", "cat", broken, "part"},
			{"LeftToAChild", "(cat >got; echo over) ; cat got", strings.NewReader("x\n"), "over\nx\n"},
		} {
			t.Run(c.name, func(t *testing.T) {
				got, r := runScript(t, i, c.script, func(cmd *isolate.Command) { cmd.Stdin = c.stdin })
				if got != c.want || plainOf(r) != (plain{Cause: isolate.CauseExit}) {
					t.Errorf("got %q, %+v; want %q", got, plainOf(r), c.want)
				}
			})
		}
	})
}

// The end of a command waits for no reader, and its goroutine goes with the reader's next answer.
func TestInit_Exec_StdinBlocks(t *testing.T) {
	eachRung(t, func(t *testing.T, i *isolate.Init) {
		release, over := make(chan struct{}), make(chan struct{})
		reads := 0
		blocked := readerFunc(func(p []byte) (int, error) {
			if reads++; reads == 1 {
				return copy(p, "first\n"), nil
			}
			<-release
			defer close(over)
			return copy(p, "late"), nil
		})
		got, r := runScript(t, i, "read line; echo $line", func(c *isolate.Command) { c.Stdin = blocked })
		if got != "first\n" || plainOf(r) != (plain{Cause: isolate.CauseExit}) {
			t.Errorf("got %q, %+v", got, plainOf(r))
		}
		close(release)
		<-over
		if got, _ := runScript(t, i, "cat | wc -c"); got != "0\n" {
			t.Errorf("next command: got %q bytes of input, want none", got)
		}
		eventually(t, "end of the copying", func() bool { return !copying() })
	})
}

// copying tells whether any goroutine still feeds an input.
func copying() bool {
	return strings.Contains(stacks(), "isolate.openInput")
}

// stacks are those of all goroutines.
func stacks() string {
	buf := make([]byte, 1<<20)
	return string(buf[:runtime.Stack(buf, true)])
}
