package gitrepo

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/warmfleet/warmfleet/internal/remotetest"
)

const token = "S3cr3t/x+y"

// forms are the ways the token may be spelled.
func forms() []string {
	return []string{
		"S3cr3t", url.QueryEscape(token), base64.StdEncoding.EncodeToString([]byte(token)), base64.StdEncoding.EncodeToString([]byte("bot:" + token)),
		base64.RawURLEncoding.EncodeToString([]byte(token)),
	}
}

// Case J1: the token of a pool reaches the remote and nothing else: no argument, file of mirror, base or sandbox, log or error.
func TestStore_SyncCaseJ1TokenStaysOut(t *testing.T) {
	remote := serve(t, sample(t), token)
	dir, log := t.TempDir(), &strings.Builder{}
	s := openTestStore(t, dir, Options{})
	s.opt.Log = zerolog.New(log)
	asked := 0
	r := Remote{URL: remote.url, Credential: func(context.Context) (Credential, error) {
		asked++
		return Credential{User: "bot", Password: token}, nil
	}}
	stop := watchArguments(t, "S3cr3t")
	if _, err := s.Sync(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	remote.write("a.txt", "three\n")
	remote.commit("three")
	tip, err := s.Sync(t.Context(), r)
	if err != nil || asked != 2 {
		t.Fatalf("got %v, and the credential was asked for %d times, want twice", err, asked)
	}
	base, err := s.FromMirror(t.Context(), r, tip)
	if err != nil {
		t.Fatal(err)
	}
	defer base.Release()
	tree := materialise(t, base.Chain)
	if _, err := s.Bring(t.Context(), r, tip, localTree{dir: tree.dir}); err != nil {
		t.Fatal(err)
	}
	stop()
	if got := tree.git("remote", "get-url", "origin"); got != remote.url {
		t.Errorf("origin of the sandbox: got %q, want %q", got, remote.url)
	}
	for _, where := range []string{dir, tree.dir} {
		if got := findText(t, where, forms()...); got != "" {
			t.Errorf("the token is in %s", got)
		}
	}
	wantClean(t, "the log", log.String())
}

// Case J1, when things go wrong: one line that says what it is, without the token.
func TestStore_SyncCaseJ1Errors(t *testing.T) {
	t.Parallel()
	answers := func(code int) string {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			user, password, _ := req.BasicAuth()
			http.Error(w, fmt.Sprintf("no: %s %s %s", user, password, req.Header.Get("Authorization")), code)
		}))
		t.Cleanup(srv.Close)
		return srv.URL + "/r.git"
	}
	address, _ := remotetest.Silent(t)
	remote := serve(t, sample(t), "another")
	for _, tt := range []struct {
		name, url string
		want      error
	}{
		{"Closed", "http://127.0.0.1:1/r.git", nil},
		{"WrongToken", remote.url, ErrDenied},
		{"Forbidden", answers(http.StatusForbidden), ErrDenied},
		{"Unauthorized", answers(http.StatusUnauthorized), ErrDenied},
		{"NotFound", answers(http.StatusNotFound), nil},
		{"Broken", answers(http.StatusInternalServerError), nil},
		{"Stalled", "http://" + address + "/r.git", ErrStalled},
	} {
		for _, given := range []string{"URL", "Provider"} {
			t.Run(tt.name+given, func(t *testing.T) {
				dir := t.TempDir()
				s := openTestStore(t, dir, Options{Timeout: time.Second})
				r := Remote{URL: strings.Replace(tt.url, "://", "://bot:"+url.QueryEscape(token)+"@", 1)}
				if given == "Provider" {
					r = Remote{URL: tt.url, Credential: func(context.Context) (Credential, error) { return Credential{"bot", token}, nil }}
				}
				_, err := s.Sync(t.Context(), r)
				if err == nil || tt.want != nil && !errors.Is(err, tt.want) || strings.Contains(err.Error(), "\n") {
					t.Fatalf("got %v, want %v on one line", err, tt.want)
				}
				t.Log(err)
				wantClean(t, "the error", err.Error())
				_, err = s.FromURL(t.Context(), r.URL, "")
				wantClean(t, "the error of a plan", fmt.Sprint(err))
				if got := findText(t, dir, forms()...); got != "" {
					t.Errorf("the token is in %s", got)
				}
			})
		}
	}
}

// A private repository that wants a token says so.
func TestStore_SyncCaseJ1NoToken(t *testing.T) {
	remote := serve(t, sample(t), token)
	s := newStore(t)
	if _, err := s.Sync(t.Context(), Remote{URL: remote.url}); !errors.Is(err, ErrDenied) || !strings.Contains(err.Error(), "none was given") {
		t.Errorf("got %v, want ErrDenied, saying that no credential was given", err)
	}
	failed := errors.New("the safe is locked")
	_, err := s.Sync(t.Context(), Remote{URL: remote.url, Credential: func(context.Context) (Credential, error) { return Credential{}, failed }})
	if !errors.Is(err, failed) {
		t.Errorf("got %v, want what the provider said", err)
	}
}

// One caller's wrong token neither fails another's sync nor gets what is the other's.
func TestStore_SyncTokensOfTwoPools(t *testing.T) {
	remote, s := serve(t, sample(t), token), newStore(t)
	results := make(chan error, 20)
	for i := range cap(results) {
		go func() {
			password := token
			if i%2 == 1 {
				password = "wrong"
			}
			_, err := s.Sync(t.Context(), Remote{URL: remote.url, Credential: func(context.Context) (Credential, error) {
				return Credential{"bot", password}, nil
			}})
			if errors.Is(err, ErrDenied) != (password == "wrong") {
				err = fmt.Errorf("password %q: got %w", password, err)
				results <- err
				return
			}
			results <- nil
		}()
	}
	for range cap(results) {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
}

func wantClean(t *testing.T, what, text string) {
	t.Helper()
	for _, f := range forms() {
		if strings.Contains(text, f) {
			t.Errorf("the token is in %s: %s", what, text)
		}
	}
}

// by is a remote as one asks who has a password.
func by(url, password string) Remote {
	return Remote{URL: url, Who: "the holder of " + password, Credential: func(context.Context) (Credential, error) {
		return Credential{"bot", password}, nil
	}}
}

// What one credential got is not known to who asks with another, or with none: a stale base must be their own.
func TestStore_KnownToWhoAskedAlone(t *testing.T) {
	remote, s := serve(t, sample(t), token), newStore(t)
	mine, wrong, nobody := by(remote.url, token), by(remote.url, "wrong"), Remote{URL: remote.url}
	tip, err := s.Sync(t.Context(), mine)
	if err != nil {
		t.Fatal(err)
	}
	for name, other := range map[string]Remote{"Wrong": wrong, "Nobody": nobody} {
		if _, err := s.Sync(t.Context(), other); !errors.Is(err, ErrDenied) {
			t.Errorf("%s: got %v, want ErrDenied", name, err)
		}
		if got, ok := s.Known(other); ok {
			t.Errorf("%s: knows %+v, which it was not told", name, got)
		}
	}
	if got, ok := s.Known(mine); !ok || got != tip {
		t.Errorf("got %+v, %v, want %+v", got, ok, tip)
	}
}

// Case J1: a branch is fetched and pushed with the credential of the remote, which shows nowhere; a wrong one is one plain error.
func TestStore_PushCaseJ1Token(t *testing.T) {
	r := sample(t)
	for _, setting := range []string{"http.receivepack true", "receive.denyCurrentBranch ignore"} {
		key, value, _ := strings.Cut(setting, " ")
		r.git("config", key, value)
	}
	old := r.git("rev-parse", "trunk")
	commit := r.git("commit-tree", "-m", "by push", "-p", old, "trunk^{tree}")
	remote, s := serve(t, r, token), newStore(t)
	push := func(to Remote) error {
		return s.Push(t.Context(), Push{To: to, Branch: "trunk", GitDir: filepath.Join(r.dir, ".git"), Commit: commit, Old: old})
	}
	for _, to := range []Remote{by(remote.url, "wrong/"+token), {URL: remote.url}} {
		_, err := s.Tip(t.Context(), to, "trunk")
		for what, err := range map[string]error{"tip": err, "push": push(to)} {
			if !errors.Is(err, ErrDenied) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: got %v, want ErrDenied on one line", what, err)
			}
			wantClean(t, "the error of "+what, fmt.Sprint(err))
		}
	}
	stop := watchArguments(t, "S3cr3t")
	if m, err := s.Tip(t.Context(), by(remote.url, token), "trunk"); err != nil || m.Commit != old {
		t.Errorf("got %+v, %v, want %s", m, err, old)
	}
	if err := push(by(remote.url, token)); err != nil || r.git("rev-parse", "trunk") != commit {
		t.Errorf("got %v, and the branch is at %s, want %s", err, r.git("rev-parse", "trunk"), commit)
	}
	stop()
	if got := findText(t, s.opt.Dir, forms()...); got != "" {
		t.Errorf("the token is in %s", got)
	}
}
