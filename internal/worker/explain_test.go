package worker

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go/micro"

	"github.com/warmfleet/warmfleet/pkg/api"
)

// explained asks a worker how the pool's image would be made, for a code and error where it would not say.
func (p *poolRig) explained(t *testing.T, pool string) (e api.ImageExplained, failed string) {
	t.Helper()
	m, err := p.fleet.Conn.Request(p.fleet.Subjects.Worker("w1", "explain"), []byte(`{"name":"`+pool+`"}`), patience)
	if err != nil {
		t.Fatal(err)
	}
	if code := m.Header.Get(micro.ErrorCodeHeader); code != "" {
		return e, code + " " + m.Header.Get(micro.ErrorHeader)
	}
	if err := json.Unmarshal(m.Data, &e); err != nil {
		t.Fatal(err)
	}
	return e, ""
}

// commitFile commits a file to the remote.
func (p *poolRig) commitFile(t *testing.T, name, content string) {
	t.Helper()
	file := filepath.Join(p.up, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	gitAs(t, p.up, "add", "-A")
}

func TestWorker_ExplainsAnImage(t *testing.T) {
	t.Parallel()
	p := newPoolRig(t)
	p.commitFile(t, "go.sum", "x")
	p.commitFile(t, "yarn.lock", "x")
	commit := p.push(t, "v1")
	p.worker(t, "w1")
	p.apply(t, `,"image":"auto","target_size":0`)
	var got api.ImageExplained
	await(t, "the pool to be served", func() (ok bool) {
		var failed string
		got, failed = p.explained(t, "api")
		return failed == ""
	})
	if got.Worker != "w1" || got.Source != "repository" || got.Commit != commit || got.Branch != "trunk" || got.TimeoutMS != 30*60*1000 || len(got.Looked) < 10 {
		t.Errorf("got %+v", got)
	}
	if d := cmp.Diff(append(got.Setup, got.Warm...), []string{"export YARN_ENABLE_GLOBAL_CACHE=0; corepack yarn install --immutable || yarn install --frozen-lockfile"}); d != "" {
		t.Errorf("steps (-got +want):\n%s", d)
	}
	// A file that is refused is told, and so is what the next commit says, at once.
	p.commitFile(t, ".warmfleet/image.yaml", "setup: [make]\nsteup: [x]\n")
	commit = p.push(t, "v2")
	if got, failed := p.explained(t, "api"); failed != "" || !strings.Contains(got.Error, "image.yaml") || strings.Contains(got.Error, "\n") || len(got.Setup) != 0 ||
		got.Looked[0].Result != "refused" {
		t.Errorf("got %+v, %s, want .warmfleet/image.yaml refused on one line", got, failed)
	}
	// The pool file's own steps count before everything in the repository.
	p.apply(t, `,"image":{"setup":["make all"],"env":{"A":"1"}},"target_size":0`)
	await(t, "the file's own steps", func() bool {
		got, failed := p.explained(t, "api")
		want := api.ImageExplained{
			Pool: "api", Worker: "w1", Repo: p.repo, Commit: commit, Branch: "trunk", Source: "pool_file", Why: []string{"the pool file gives the steps"}, Looked: []api.ImageLooked{},
			Setup: []string{"make all"}, Warm: []string{}, Env: map[string]string{"A": "1"}, TimeoutMS: 30 * 60 * 1000,
		}
		return failed == "" && cmp.Equal(got, want)
	})
	for pool, want := range map[string]string{"other": api.CodeNotFound + " ", `"`: api.CodeInvalid + " "} {
		if _, failed := p.explained(t, pool); !strings.HasPrefix(failed, want) {
			t.Errorf("pool %s: got %q, want %s", pool, failed, want)
		}
	}
	if err := os.RemoveAll(p.repo); err != nil {
		t.Fatal(err)
	}
	missed := func() bool {
		_, failed := p.explained(t, "api")
		return strings.Contains(failed, p.repo) && !strings.Contains(failed, "\n")
	}
	if !missed() {
		t.Error("a pool with steps of its own does not ask the remote")
	}
	p.apply(t, `,"image":"auto","target_size":0`)
	await(t, "the remote to be missed", missed)
}
