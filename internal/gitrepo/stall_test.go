package gitrepo

import (
	"context"
	"crypto/rand"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/warmfleet/warmfleet/internal/remotetest"
)

// large is a repository whose pack does not compress, of so many bytes.
func large(t *testing.T, size int) repo {
	t.Helper()
	r := sample(t)
	noise := make([]byte, size)
	_, _ = rand.Read(noise)
	r.write("noise", string(noise))
	r.commit("noise")
	return r
}

// serveFiles serves a repository as files, without git's protocol.
func serveFiles(t *testing.T, r repo) string {
	t.Helper()
	srv := httptest.NewServer(http.FileServer(http.Dir(filepath.Join(r.dir, ".git"))))
	t.Cleanup(srv.Close)
	return srv.URL
}

// Case C6: who accepts and then says nothing is given up within the limit, for all that wait, and nobody else waits.
func TestStore_SyncCaseC6Silent(t *testing.T) {
	t.Parallel()
	address, _ := remotetest.Silent(t)
	good := sample(t)
	for _, scheme := range []string{"http", "git", "ssh"} {
		t.Run(scheme, func(t *testing.T) {
			dir := t.TempDir()
			s := openTestStore(t, dir, Options{Timeout: time.Second})
			r := Remote{URL: scheme + "://" + address + "/r.git"}
			var wg sync.WaitGroup
			for range 6 {
				wg.Go(func() {
					_, err := s.Sync(t.Context(), r)
					if !errors.Is(err, ErrStalled) || !strings.Contains(err.Error(), r.URL) || !strings.Contains(err.Error(), "1s") || strings.Contains(err.Error(), "\n") {
						t.Errorf("got %v, want ErrStalled on one line with remote and limit", err)
					}
				})
			}
			if _, err := s.Sync(t.Context(), Remote{URL: good.dir}); err != nil {
				t.Errorf("another remote: %v", err)
			}
			wg.Wait()
			remotetest.WantNoGit(t, dir)
		})
	}
}

// Case C6, in the midst of a fetch: the last good state stays, the lock is free, and the next fetch has all.
func TestStore_SyncCaseC6StallsHalfway(t *testing.T) {
	t.Parallel()
	remote := serve(t, sample(t), "")
	relay := remotetest.Between(t, remote.url)
	dir := t.TempDir()
	s := openTestStore(t, dir, Options{Timeout: time.Second})
	r := Remote{URL: relay.URL}
	before, err := s.Sync(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	noise := make([]byte, 300<<10)
	_, _ = rand.Read(noise)
	remote.write("noise", string(noise))
	want := remote.commit("noise")
	relay.Limit.Store(100 << 10)
	if _, err := s.Sync(t.Context(), r); !errors.Is(err, ErrStalled) {
		t.Fatalf("got %v, want ErrStalled", err)
	}
	remotetest.WantNoGit(t, dir)
	if known, ok := s.Known(r); !ok || known != before {
		t.Errorf("Known: got %+v, want %+v", known, before)
	}
	b, err := s.FromMirror(t.Context(), r, before)
	if err != nil {
		t.Fatal(err)
	}
	b.Release()
	relay.Limit.Store(0)
	if tip, err := s.Sync(t.Context(), r); err != nil || tip.Commit != want {
		t.Errorf("got %+v, %v, want %s", tip, err, want)
	}
}

// Case C6, the control: a slow remote finishes, however often the limit passes meanwhile.
func TestStore_SyncCaseC6Slow(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"git", "plain files"} {
		t.Run(kind, func(t *testing.T) {
			r := large(t, 200<<10)
			server := serve(t, r, "").url
			if kind != "git" {
				r.git("update-server-info")
				server = serveFiles(t, r)
			}
			relay := remotetest.Between(t, server)
			relay.Rate.Store(50 << 10)
			s := openTestStore(t, t.TempDir(), Options{Timeout: time.Second})
			start := time.Now()
			tip, err := s.Sync(t.Context(), Remote{URL: relay.URL})
			if err != nil || tip.Commit != r.git("rev-parse", "HEAD") {
				t.Fatalf("got %+v, %v", tip, err)
			}
			if took := time.Since(start); took < 2*time.Second {
				t.Errorf("it took %v: the remote was not slow", took)
			}
		})
	}
}

// A caller that gives up leaves no process; nor does a worker that is killed.
func TestStore_SyncCaseC6NoChildRemains(t *testing.T) {
	if victim := os.Getenv(victimEnv); victim != "" {
		dir, url, _ := strings.Cut(victim, "\n")
		_, err := openTestStore(t, dir, Options{Timeout: time.Hour}).Sync(t.Context(), Remote{URL: url})
		t.Fatal(err)
	}
	address, accepted := remotetest.Silent(t)
	for _, scheme := range []string{"http", "git"} {
		remote := scheme + "://" + address + "/r.git"
		t.Run(scheme+" cancelled", func(t *testing.T) {
			dir := t.TempDir()
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error)
			go func() {
				_, err := openTestStore(t, dir, Options{Timeout: time.Hour}).Sync(ctx, Remote{URL: remote})
				ended <- err
			}()
			<-accepted
			cancel()
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Errorf("got %v, want cancelled", err)
			}
			remotetest.WantNoGit(t, dir)
		})
		t.Run(scheme+" killed", func(t *testing.T) {
			dir := t.TempDir()
			cmd := exec.Command("/proc/self/exe", "-test.run=^TestStore_SyncCaseC6NoChildRemains$")
			cmd.Env = append(os.Environ(), victimEnv+"="+dir+"\n"+remote)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			<-accepted
			if len(remotetest.Gits(dir)) == 0 {
				t.Error("no git runs")
			}
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			remotetest.WantNoGit(t, dir)
		})
	}
}
