package pools

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/test/fleettest"
)

// Worker A dies; a session of its resumes from its last checkpoint on worker B with every file, mode and identity.
func TestSession_ResumesOnAnotherWorker(t *testing.T) {
	t.Parallel()
	for _, as := range fleettest.Accounts(t) {
		t.Run(as.Name, func(t *testing.T) {
			t.Parallel()
			resumesElsewhere(t, startRig(t, as))
		})
	}
}

func resumesElsewhere(t *testing.T, c *rig) {
	t.Helper()
	dir := c.Tree(t, "tree", "echo one >a.txt; echo two >b.txt; mkdir empty; echo ro >ro; chmod 444 ro; ln b.txt b.link")
	fleettest.Must(t, unix.Setxattr(filepath.Join(dir, "b.txt"), "user.kept", []byte("v\x00w"), 0))
	a := c.Worker(t, "a")
	s := started(t, c.Do(t, "warmfleet", "session", "start", "--path", dir, "--user", `Q'x $(id)`, "--email", "q@example.com", "-o", "json"))
	c.Do(t, "warmfleet", "session", "exec", s.ID, "--", "sh", "-c", `
		mkdir -p d/none d/shut && printf 'a\0b' >d/bin && chmod 755 d/bin && ln -s bin d/link && ln -s /nowhere d/dangling && ln d/bin d/hard
		chmod 500 d/shut && truncate -s 1M d/sparse && touch -d '2001-02-03 04:05:06.789' d/sparse && echo x >"d/$(printf 'new\nline')" && rm a.txt`)
	cp := c.Do(t, "warmfleet", "session", "checkpoint", s.ID, "-o", "name")
	a.Kill(t)
	fleettest.Eventually(t, "the session is lost", func() bool {
		return started(t, c.Do(t, "warmfleet", "session", "show", s.ID, "-o", "json")).State == "lost"
	})
	c.Worker(t, "b")
	n := started(t, c.Do(t, "warmfleet", "session", "resume", s.ID, "-o", "json"))
	if n.Worker != "b" || n.Source != "checkpoint" || n.ID == s.ID {
		t.Fatalf("got %+v, want a new session on b", n)
	}
	got := c.Do(t, "warmfleet", "session", "exec", n.ID, "--", "sh", "-c", "stat -c %a d/bin ro d/shut; readlink d/link; ls a.txt 2>/dev/null; od -An -c d/bin | tr -d ' '; ls -A empty d/none; git config user.name; git config user.email")
	if want := "755\n444\n500\nbin\na\\0b\nd/none:\n\nempty:\nQ'x $(id)\nq@example.com\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	c.Do(t, "warmfleet", "session", "exec", n.ID, "--", "sh", "-c", "echo x >marker; rm marker; touch -r d . ; touch d/none/new")
	end := c.Do(t, "warmfleet", "session", "end", n.ID, "-o", "name")
	before, after := c.exported(t, strings.TrimSpace(cp)), c.exported(t, strings.TrimSpace(end))
	if after["./d/none/new"] == "" && after["d/none/new"] == "" {
		t.Errorf("the resumed session's change is not in its checkpoint: %v", after)
	}
	for _, name := range []string{".", "./", "d/none", "d/none/", "d/none/new", "./d/none", "./d/none/", "./d/none/new"} {
		delete(before, name)
		delete(after, name)
	}
	if len(before) < 12 {
		t.Errorf("got %d entries, want all", len(before))
	}
	if d := cmp.Diff(after, before); d != "" {
		t.Errorf("every file, mode, time, attribute and link (-resumed +checkpoint):\n%s", d)
	}
	late := c.Warmfleet(t, "session", "exec", n.ID, "--", "true")
	again := c.Warmfleet(t, "session", "end", n.ID)
	if late.Code != 4 || again.Code != 4 || strings.Count(strings.TrimSpace(late.Stderr), "\n") != 0 {
		t.Errorf("after the end: got exit codes %d and %d, %q; want 4 and one line", late.Code, again.Code, late.Stderr)
	}
	refused := c.Warmfleet(t, "session", "start", "--path", dir, "--user", "a\nb")
	if refused.Code != 2 {
		t.Errorf("a newline in a name: got exit code %d, %q; want 2", refused.Code, refused.Stderr)
	}
}

// exported describes what the tar of a checkpoint holds.
func (c *rig) exported(t *testing.T, id string) map[string]string {
	t.Helper()
	r := tar.NewReader(strings.NewReader(c.Do(t, "warmfleet", "checkpoint", "export", id)))
	found := map[string]string{}
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return found
		}
		fleettest.Must(t, err)
		content, err := io.ReadAll(r)
		fleettest.Must(t, err)
		xattrs := ""
		for key, value := range h.PAXRecords {
			if strings.HasPrefix(key, "SCHILY.xattr.") {
				xattrs += fmt.Sprintf(" %s=%q", key, value)
			}
		}
		found[h.Name] = fmt.Sprintf("%c %o %d %q %s %x%s", h.Typeflag, h.Mode, h.Size, h.Linkname, h.ModTime.UTC(), sha256.Sum256(content), xattrs)
	}
}

// A worker that dies while it starts a session is followed by another, to which the one who asked does not notice.
func TestSession_StartSurvivesItsWorker(t *testing.T) {
	t.Parallel()
	c := startRig(t, fleettest.Self())
	bare := c.Path("r.git")
	c.Sh(t, c.Path(), "git init -q -b trunk up && cd up && echo v1 >VERSION && git add . && git -c user.name=T -c user.email=t@example.com commit -q -m x && git clone -q --bare . "+bare)
	gate, url := heldRemote(t, bare)
	gate.Lock()
	a := c.Worker(t, "a")
	got := make(chan fleettest.Result, 1)
	go func() { got <- c.Warmfleet(t, "session", "start", "--repo", url, "-o", "json") }()
	on := func(worker string) func() bool {
		return func() bool {
			all, err := c.Client.Sessions(t.Context())
			return err == nil && len(all) == 1 && all[0].Worker == worker && all[0].State == "starting"
		}
	}
	fleettest.Eventually(t, "a starts it", on("a"))
	a.Kill(t)
	c.Worker(t, "b")
	fleettest.Eventually(t, "b starts it", on("b"))
	gate.Unlock()
	r := <-got
	if r.Code != 0 {
		t.Fatalf("got exit code %d: %s", r.Code, r.Stderr)
	}
	s := started(t, r.Stdout)
	if s.Worker != "b" || s.State != "active" || c.Do(t, "warmfleet", "session", "read", s.ID, "VERSION") != "v1\n" {
		t.Errorf("got %+v, want it active on b", s)
	}
}

// heldRemote serves a bare repository by HTTP, and nothing of it while the lock is locked.
func heldRemote(t *testing.T, bare string) (gate *sync.RWMutex, url string) {
	t.Helper()
	execPath, err := exec.Command("git", "--exec-path").Output()
	fleettest.Must(t, err)
	gate = &sync.RWMutex{}
	git := &cgi.Handler{Path: strings.TrimSpace(string(execPath)) + "/git-http-backend", Env: []string{"GIT_PROJECT_ROOT=" + filepath.Dir(bare), "GIT_HTTP_EXPORT_ALL=1"}}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		gate.RLock()
		defer gate.RUnlock()
		git.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return gate, s.URL + "/" + filepath.Base(bare)
}

func started(t *testing.T, text string) (s api.Session) {
	t.Helper()
	fleettest.Must(t, json.NewDecoder(strings.NewReader(text)).Decode(&s))
	return s
}
