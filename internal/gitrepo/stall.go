package gitrepo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// ErrStalled reports a remote that gave no sign of life for too long.
var ErrStalled = errors.New("the remote stalled")

// ErrDenied reports a remote that does not take the credential, or wants one.
var ErrDenied = errors.New("the remote denies access")

// looks is how often in the limit a remote is looked at.
const looks = 8

// watched runs a call that talks to the remote, as long as the remote gives signs of life. Progress decides, not time: a slow
// transfer may go on.
func (f fetcher) watched(ctx context.Context, c Call) ([]byte, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	c.Watch = func(group int) (stop func()) {
		var watching sync.WaitGroup
		ctx, stopped := context.WithCancel(ctx)
		watching.Go(func() {
			if !lives(ctx, group, f.timeout) {
				cancel(fmt.Errorf("%w: nothing came for %s", ErrStalled, f.timeout))
			}
		})
		return func() {
			stopped()
			watching.Wait()
		}
	}
	out, err := f.output(ctx, c)
	return out, f.meaning(err)
}

// lives returns false when the gits of a process group have read and written nothing for as long as limit, and true when ctx ends.
func lives(ctx context.Context, group int, limit time.Duration) bool {
	ticker := time.NewTicker(max(limit/looks, time.Millisecond))
	defer ticker.Stop()
	last, since := int64(-1), time.Now()
	for {
		select {
		case <-ctx.Done():
			return true
		case <-ticker.C:
		}
		if now := moved(group); now != last {
			last, since = now, time.Now()
		} else if time.Since(since) >= limit {
			return false
		}
	}
}

// moved is how many bytes the gits of a process group have read and written, by proc(5). What comes from a remote passes
// at least one pipe or file of theirs, whatever the protocol; ssh itself is left out, since its keep-alives are no progress.
func moved(group int) int64 {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat") // the pattern is good
	var n int64
	for _, name := range stats {
		stat, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		head, tail, ok := strings.Cut(string(stat), ") ") // a name with a parenthesis is no git
		_, program, _ := strings.Cut(head, "(")
		fields := strings.Fields(tail) // state, parent, group
		if !ok || len(fields) < 3 || fields[2] != strconv.Itoa(group) || !strings.HasPrefix(program, "git") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(filepath.Dir(name), "io"))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			key, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
			if key == "rchar" || key == "wchar" {
				bytes, _ := strconv.ParseInt(value, 10, 64)
				n += bytes
			}
		}
	}
	return n
}

// deniedWords are how git, ssh and the servers that they talk to say that a credential is wrong or missing; git has no exit
// code for it, and its language is fixed.
func deniedWords() []string {
	return []string{
		"Authentication failed", "could not read Username", "could not read Password",
		"The requested URL returned error: 401", "The requested URL returned error: 403", "Permission denied (",
	}
}

// tooSlow is how git's http says that http.lowSpeedLimit was not reached, which may be seen before we see it ourselves.
const tooSlow = "Operation too slow"

// meaning names what a git that talked to the remote failed with: a refusal for lack of rights, or no sign of life.
func (f fetcher) meaning(err error) error {
	exit, ok := errors.AsType[*ExitError](err)
	if ok && strings.Contains(exit.Stderr, tooSlow) {
		return fmt.Errorf("%w: %w", ErrStalled, err)
	}
	if !ok || !slices.ContainsFunc(deniedWords(), func(w string) bool { return strings.Contains(exit.Stderr, w) }) {
		return err
	}
	if f.remote.cred == (Credential{}) {
		return fmt.Errorf("%w: it wants a credential and none was given: %w", ErrDenied, err)
	}
	return fmt.Errorf("%w: it does not take the credential: check the token: %w", ErrDenied, err)
}
