package gitrepo

import (
	"context"
	"encoding/base64"
	"errors"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/warmfleet/warmfleet/internal/remotetest"
)

// remoteRepo is a repository behind git's own HTTP server.
type remoteRepo struct {
	repo
	url      string
	requests *atomic.Int64
}

// serve serves a repository; with a password, only to user bot.
func serve(t *testing.T, r repo, password string) *remoteRepo {
	t.Helper()
	s := remotetest.Serve(t, filepath.Dir(r.dir), password)
	return &remoteRepo{repo: r, url: s.URL + "/" + url.PathEscape(filepath.Base(r.dir)) + "/.git", requests: &s.Requests}
}

func TestStore_FromURL(t *testing.T) {
	r := sample(t)
	first := r.git("rev-parse", "HEAD~1")
	r.git("tag", "-a", "-m", "t", "v1", first)
	r.git("branch", "feat/x", first)
	r.git("branch", "a->b&'#ü", first)
	head := r.git("rev-parse", "HEAD")
	hidden := r.git("commit-tree", "-m", "on no branch", "-p", first, "HEAD^{tree}")
	r.git("update-ref", "refs/heads/--evil", first)
	remote := serve(t, r, "")
	for _, tt := range []struct {
		name, url string
	}{{"http", remote.url}, {"file", "file://" + r.dir}, {"path", r.dir}} {
		s := newStore(t)
		for ref, want := range map[string][2]string{
			"": {head, "trunk"}, "HEAD": {head, "trunk"}, "trunk": {head, "trunk"}, "refs/heads/trunk": {head, "trunk"},
			"feat/x": {first, "feat/x"}, "v1": {first, ""}, "refs/tags/v1": {first, ""}, first: {first, ""}, hidden: {hidden, ""},
			"a->b&'#ü": {first, "a->b&'#ü"},
		} {
			t.Run(tt.name+" ref "+ref, func(t *testing.T) {
				b, err := s.FromURL(t.Context(), tt.url, ref)
				if err != nil {
					t.Fatal(err)
				}
				defer b.Release()
				if got := [2]string{b.Commit, b.Branch}; got != want {
					t.Errorf("got %q, want %q", got, want)
				}
				sandbox := materialise(t, b.Chain)
				sandbox.wantSound(want[0])
				origin, err := user(sandbox.dir, "remote", "get-url", "origin")
				if (tt.name == "http") != (err == nil) || tt.name == "http" && origin != remote.url {
					t.Errorf("origin: got %q, %v", origin, err)
				}
			})
		}
		for _, ref := range []string{"nope", "refs/heads/nope", "HEAD~1", "trunk:a.txt", "*", strings.Repeat("5", 40)} {
			if _, err := s.FromURL(t.Context(), tt.url, ref); err == nil {
				t.Errorf("%s: ref %q: got a base", tt.name, ref)
			}
		}
	}
}

// The mirror follows the remote: new commits, forced pushes, and names that do not fit beside old ones.
func TestStore_MirrorFollows(t *testing.T) {
	remote, s := serve(t, sample(t), ""), newStore(t)
	want := func(ref, commit string) {
		t.Helper()
		m, err := s.Mirror(t.Context(), remote.url, ref)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := user(m.Dir, "rev-parse", m.Ref+"^{commit}"); err != nil || got != commit || m.Commit != commit {
			t.Errorf("%q: got %s and %s, want %s (%v)", ref, got, m.Commit, commit, err)
		}
	}
	want("", remote.git("rev-parse", "HEAD"))
	before := remote.requests.Load()
	want("", remote.git("rev-parse", "HEAD"))
	if n := remote.requests.Load() - before; n > 2 {
		t.Errorf("asking for what is there took %d requests, want 2 at most", n)
	}
	remote.write("a.txt", "3")
	want("", remote.commit("three"))
	remote.git("reset", "-q", "--hard", "HEAD~2")
	remote.write("a.txt", "4")
	want("trunk", remote.commit("forced"))
	remote.git("branch", "x")
	want("x", remote.git("rev-parse", "HEAD"))
	remote.git("branch", "-D", "x")
	remote.git("branch", "x/y")
	want("x/y", remote.git("rev-parse", "HEAD"))
	remote.git("checkout", "-q", "-b", "main2")
	want("", remote.git("rev-parse", "HEAD"))
}

func TestStore_FromURLSha256(t *testing.T) {
	r := newRepo(t, "--object-format=sha256")
	r.write("f", "1")
	head := r.commit("one")
	remote := serve(t, r, "")
	b, err := newStore(t).FromURL(t.Context(), remote.url, "")
	if err != nil {
		t.Fatal(err)
	}
	defer b.Release()
	materialise(t, b.Chain).wantSound(head)
}

func TestStore_FromURLEmpty(t *testing.T) {
	remote := serve(t, newRepo(t), "")
	if _, err := newStore(t).FromURL(t.Context(), remote.url, ""); !errors.Is(err, ErrUnborn) {
		t.Errorf("got %v, want ErrUnborn", err)
	}
}

// Twelve at once share fetches.
func TestStore_FromURLAtOnce(t *testing.T) {
	remote, s := serve(t, sample(t), ""), newStore(t)
	var wg sync.WaitGroup
	for range 12 {
		wg.Go(func() {
			b, err := s.FromURL(t.Context(), remote.url, "")
			if err != nil {
				t.Error(err)
				return
			}
			b.Release()
		})
	}
	wg.Wait()
	// The first run asks and fetches, the second one asks; both at protocol version 2.
	if n := remote.requests.Load(); n > 12 {
		t.Errorf("got %d requests for 12 callers", n)
	}
}

// Case J1: a credential reaches the remote and nothing else.
func TestStore_Credentials(t *testing.T) {
	const password = "S3cr3t/x"
	remote := serve(t, sample(t), password)
	withUser := strings.Replace(remote.url, "://", "://bot:S3cr3t%2Fx@", 1)
	for _, tt := range []struct {
		name, url string
		provider  func(context.Context, string) (Credential, error)
	}{
		{"in the URL", withUser, nil},
		{"provider", remote.url, func(_ context.Context, url string) (Credential, error) {
			if url != remote.url {
				t.Errorf("provider was asked for %q", url)
			}
			return Credential{User: "bot", Password: password}, nil
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			stop := watchArguments(t, "S3cr3t")
			s := openTestStore(t, dir, Options{Credential: tt.provider})
			b, err := s.FromURL(t.Context(), tt.url, "")
			if err != nil {
				t.Fatal(err)
			}
			stop()
			b.Release()
			if got := findText(t, dir, "S3cr3t", base64.StdEncoding.EncodeToString([]byte("bot:"+password))); got != "" {
				t.Errorf("the secret is in %s", got)
			}
		})
	}
	for name, url := range map[string]string{
		"wrong":    strings.Replace(remote.url, "://", "://bot:S3cr3t-wrong@", 1),
		"none":     remote.url,
		"token":    strings.Replace(remote.url, "://", "://S3cr3t-token@", 1),
		"closed":   "http://bot:S3cr3t%2Fx@127.0.0.1:1/r.git",
		"bad host": "http://bot:S3cr3t@no such host/",
		"scheme":   "ftp://bot:S3cr3t@127.0.0.1/x",
	} {
		t.Run(name, func(t *testing.T) {
			start := time.Now()
			_, err := newStore(t).FromURL(t.Context(), url, "")
			if err == nil || strings.Contains(err.Error(), "S3cr3t") || strings.Contains(err.Error(), "\n") || time.Since(start) > 10*time.Second {
				t.Errorf("after %v got %v, want one clean line within seconds", time.Since(start), err)
			}
			t.Log(err)
		})
	}
}

// watchArguments fails the test when word shows up in the arguments of any process.
func watchArguments(t *testing.T, word string) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			found, _ := filepath.Glob("/proc/[0-9]*/cmdline")
			for _, f := range found {
				if b, err := os.ReadFile(f); err == nil && strings.Contains(string(b), word) {
					t.Errorf("%q is in the arguments %q", word, b)
					return
				}
			}
		}
	})
	return func() { cancel(); wg.Wait() }
}

// findText names the first file below dir that holds one of words.
func findText(t *testing.T, dir string, words ...string) string {
	t.Helper()
	var found string
	err := filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(p)
		for _, w := range words {
			if strings.Contains(string(b), w) {
				found = p
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// A remote that accepts and never answers is given up after the timeout; callers who wait together fail together.
func TestStore_FromURLStalled(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	for _, scheme := range []string{"http", "git", "ssh"} {
		t.Run(scheme, func(t *testing.T) {
			s := openTestStore(t, t.TempDir(), Options{Timeout: time.Second})
			start := time.Now()
			var wg sync.WaitGroup
			for range 12 {
				wg.Go(func() {
					if _, err := s.FromURL(t.Context(), scheme+"://"+l.Addr().String()+"/r.git", ""); err == nil {
						t.Error("got a base")
					}
				})
			}
			wg.Wait()
			if took := time.Since(start); took > 8*time.Second {
				t.Errorf("12 callers took %v", took)
			}
		})
	}
}

func TestParseRemote(t *testing.T) {
	for raw, want := range map[string]string{
		"https://bot:pw@example.com/x.git": "https://example.com/x.git",
		"https://tok@example.com:8443/x":   "https://example.com:8443/x",
		"ssh://git:pw@example.com/x":       "ssh://git@example.com/x",
		"git@example.com:acme/x.git":       "git@example.com:acme/x.git",
		"git://example.com/x":              "git://example.com/x",
		"file:///srv/x.git":                "/srv/x.git",
		"/srv/x y.git":                     "/srv/x y.git",
	} {
		got, err := parseRemote(raw)
		if err != nil {
			t.Errorf("%q: %v", raw, err)
		}
		if diff := cmp.Diff(want, got.url); diff != "" {
			t.Errorf("%q: %s", raw, diff)
		}
	}
	for _, raw := range []string{
		"", "-u", "--upload-pack=touch CANARY", "--config=x", "ext::sh -c 'touch CANARY'", "fd::17", "relative/path", "ftp://x/y", "https://",
		"https:///x", "https://-oProxyCommand=x/y", "ssh://-oProxyCommand=x/y", "-oProxyCommand=x:y", "https://x/\ny", "file://rel", "http::https://x",
		"ssh://-l@host/x", "x::y",
	} {
		if got, err := parseRemote(raw); !errors.Is(err, ErrURL) {
			t.Errorf("%q: got %+v, %v; want ErrURL", raw, got, err)
		}
	}
}

func TestSummary(t *testing.T) {
	for _, tt := range []struct{ in, want string }{
		{"", ""},
		{"warning: w\nfatal: it broke\n", "fatal: it broke"},
		{
			"Host key verification failed.\r\nfatal: Could not read from remote repository.\n\nPlease make sure you have the correct access rights\nand the repository exists.\n",
			"Host key verification failed.; fatal: Could not read from remote repository.",
		},
		{"fatal: unable to access 'http://bot:pw@h/x/': no pw", "fatal: unable to access 'http://***@h/x/': no ***"},
	} {
		if got := summary(tt.in, []string{"bot:pw", "pw"}); got != strings.ReplaceAll(tt.want, "***@", "") {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}
}
