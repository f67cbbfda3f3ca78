package worker

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/warmfleet/warmfleet/internal/gitrepo"
	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/pkg/checkpoint"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/plan"
	"github.com/warmfleet/warmfleet/pkg/poolfile"
)

// refusal is a plan that this worker cannot run as it is; people can mend it.
type refusal struct {
	code string // for programs: decides the exit code
	msg  string // for people: what failed, on what, why, what to do
}

func (r *refusal) Error() string { return r.msg }

func refuse(code, format string, args ...any) error {
	return &refusal{code: code, msg: fmt.Sprintf(format, args...)}
}

// target is the resource of a plan as it is on this worker.
type target struct {
	plan string // id
	// path is the real path of a path resource, "" for a repository URL.
	path string
	info gitrepo.Info
	// chain and index are where a sandbox starts; set by base.
	chain layer.Chain
	index *layer.Index
	// commit is what the base was made of, and branch the one it is on; known once it is.
	commit, branch string
	box            *poolBox     // of a plan with a pool, nil for others
	watch          *layer.Watch // of a live base, nil for others
	notes          []string     // for the claim, about the base of a repository or the sandbox of a pool
	done           func()       // releases the layers it starts from, may be nil
}

// resolve re-checks a plan's resource where it is opened: links may have moved since the
// command line or the scheduler looked.
func (w *Worker) resolve(ctx context.Context, p *plan.Plan) (*target, error) {
	if p.Resource == nil {
		return nil, refuse("invalid_resource", "plan %q: has no resource: name a path or a repo", p.Name)
	}
	if p.Resource.Repo != "" {
		return w.resolveRepo(p)
	}
	real, err := filepath.EvalSymlinks(p.Resource.Path)
	if err != nil {
		return nil, refuse("invalid_resource", "path %q: %v: name a directory that exists on this host", p.Resource.Path, err)
	}
	if fi, err := os.Stat(real); err != nil || !fi.IsDir() {
		return nil, refuse("invalid_resource", "path %q: is not a directory", p.Resource.Path)
	}
	if !w.allowed(real) {
		return nil, refuse("path_not_allowed", "path %q: worker %s does not allow %s: start it with --allow-path", p.Resource.Path, w.cfg.Name, real)
	}
	if inside(w.cfg.StateDir, real) {
		return nil, refuse("invalid_resource", "path %q: lies in the state directory %s: name another path, or a --state-dir elsewhere", p.Resource.Path, w.cfg.StateDir)
	}
	t := &target{path: real}
	if t.info, err = w.repos.Locate(ctx, real); err != nil {
		return nil, err
	}
	return t, w.checkStrategy(p, t)
}

func (w *Worker) resolveRepo(p *plan.Plan) (*target, error) {
	if p.Strategy == plan.InPlace {
		return nil, refuse("invalid_strategy", "strategy none: works in place, so it needs a path, not repo %s", p.Resource.Repo)
	}
	if local, ok := LocalRepo(p.Resource.Repo); ok && !w.ofPool(p) {
		real, err := filepath.EvalSymlinks(local)
		if err != nil {
			return nil, refuse("invalid_resource", "repo %q: %v: name a repository that exists on this host", p.Resource.Repo, err)
		}
		if !w.allowed(real) {
			return nil, refuse("path_not_allowed", "repo %q: worker %s does not allow %s: start it with --allow-path", p.Resource.Repo, w.cfg.Name, real)
		}
	}
	return &target{}, nil
}

// LocalRepo returns the path of a repository that is named by a path or file URL: such a
// repository is a path of this host, and has to be allowed like one.
func LocalRepo(repo string) (path string, ok bool) {
	return poolfile.LocalRepo(repo)
}

func (w *Worker) checkStrategy(p *plan.Plan, t *target) error {
	if err := w.checkLive(p, t); err != nil {
		return err
	}
	switch {
	case p.Strategy == plan.GitWorktree && !canCheckout(t.info):
		return refuse("invalid_strategy", "strategy git_worktree: %s is %s: use copy_on_write, or name the root of a git work tree with a commit", t.path, describeKind(t.info))
	case p.Strategy == plan.InPlace && p.Apply != plan.ApplyAuto:
		return refuse("invalid_strategy", "strategy none: works in place, so only apply: auto makes sense, not %s", p.Apply)
	case p.Strategy == plan.InPlace && !w.report.Rung.Mounts() && os.Getuid() == 0:
		return refuse("unmet_isolation", "strategy none: as root it needs an id-mapped mount, which does not work here: run the worker as an ordinary user")
	case p.Strategy == plan.InPlace && mountBelow(t.path) != "":
		return refuse("invalid_resource", "strategy none: %s is another mount, which could not be rolled back: unmount it, or use copy_on_write", mountBelow(t.path))
	case t.info.Kind == gitrepo.KindBare && p.Apply != plan.ApplyNever && (p.Commit == nil || p.Strategy != plan.GitWorktree):
		return refuse("invalid_resource", "strategy %s: %s is a bare repository, which has no files to apply to: use git_worktree with commit, or apply: never", p.Strategy, t.path)
	case p.Commit != nil && p.Apply != plan.ApplyNever && t.info.Kind != gitrepo.KindBare && !isTop(t.info):
		return refuse("invalid_resource", "commit: %s is %s: name the root of a git work tree, or leave commit out", t.path, describeKind(t.info))
	}
	return nil
}

// isTop tells whether a path is the top of a work tree, with or without a commit.
func isTop(i gitrepo.Info) bool {
	return i.Kind == gitrepo.KindWorkTree || i.Kind == gitrepo.KindLinkedWorkTree || i.Kind == gitrepo.KindSubmodule
}

// mountBelow is a place below a path where something is mounted, "" for none. What the kernel does not tell is none:
// it only spares a plan that would fail.
func mountBelow(path string) string {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(table)) {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			continue
		}
		if at := unescaped.Replace(fields[4]); at != path && events.Within(path, at) {
			return at
		}
	}
	return ""
}

// unescaped reads a path as mountinfo writes it.
var unescaped = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

func describeKind(i gitrepo.Info) string {
	switch {
	case i.Unborn:
		return "a repository without a commit"
	case i.Kind == gitrepo.KindNone:
		return "not a git repository"
	case i.Kind == gitrepo.KindSubdirectory:
		return "below the root of the work tree " + i.Root
	default:
		return "a " + strings.ReplaceAll(string(i.Kind), "_", " ")
	}
}

// canCheckout tells whether git_worktree can start from a path: the top of a work tree, or a
// bare repository, with a commit.
func canCheckout(i gitrepo.Info) bool {
	switch i.Kind {
	case gitrepo.KindWorkTree, gitrepo.KindLinkedWorkTree, gitrepo.KindSubmodule, gitrepo.KindBare:
		return !i.Unborn
	}
	return false
}

func (w *Worker) allowed(real string) bool {
	for _, entry := range w.tokens {
		if entry != "" && inside(entry, real) {
			return true
		}
	}
	return false
}

// inside tells whether path is dir or below it once dir's own links are resolved.
func inside(dir, path string) bool {
	real, err := filepath.EvalSymlinks(dir)
	return err == nil && events.Within(real, path)
}

// base brings the base of a target up to date.
func (w *Worker) base(ctx context.Context, p *plan.Plan, t *target) error {
	defer w.shelf.Nudge()
	switch {
	case p.Pool != "":
		return w.poolBase(ctx, p, t)
	case t.path == "":
		b, err := w.repos.FromURL(ctx, p.Resource.Repo, p.Resource.Ref)
		t.chain, t.commit, t.branch, t.notes, t.done = b.Chain, b.Commit, b.Branch, b.Notes, b.Release
		return err
	case p.Strategy == plan.GitWorktree:
		b, err := w.repos.FromPath(ctx, t.path, p.Resource.Ref)
		t.chain, t.done = b.Chain, b.Release
		return err
	case p.Base == plan.BaseLive:
		return w.live(ctx, t)
	default:
		b, err := w.bases.FromPath(ctx, t.path)
		t.chain, t.index, t.done = b.Chain, b.Index, b.Release
		return err
	}
}

// retainTries bounds how often a checkpoint is restored whose base went away in between.
const retainTries = 3

// restore brings a checkpoint's layers into the cache and keeps them there until release: a
// refresh of the path's image may otherwise remove layers of the base that nothing else uses.
func (w *Worker) restore(ctx context.Context, id string) (checkpoint.Restored, func(), error) {
	var err error
	for range retainTries {
		r, restored := w.cps.Restore(ctx, id)
		if restored != nil {
			return r, nil, restored
		}
		var release func()
		if release, err = w.retain(r.Chain[:r.BaseLayers]); err == nil {
			return r, func() { release(); r.Release() }, nil
		}
		r.Release()
	}
	return checkpoint.Restored{}, nil, fmt.Errorf("worker: restore checkpoint %q: %w", id, err)
}

func (w *Worker) retain(base layer.Chain) (release func(), err error) {
	ofPath, err := w.bases.Retain(base)
	if err != nil {
		return nil, err
	}
	ofRepo, err := w.repos.Retain(base)
	if err != nil {
		ofPath()
		return nil, err
	}
	return func() {
		ofPath()
		ofRepo()
	}, nil
}

// RealPaths resolves the directories that --allow-path names; each must exist.
func RealPaths(paths []string) ([]string, error) {
	var out []string
	for _, p := range paths {
		abs, err := filepath.Abs(p)
		if err == nil {
			abs, err = filepath.EvalSymlinks(abs)
		}
		if err != nil {
			return nil, fmt.Errorf("allow-path %q: %w: name a directory that exists", p, err)
		}
		out = append(out, abs)
	}
	return out, nil
}

// isGit tells whether a path is in a git work tree, whose .git apply leaves alone.
func isGit(i gitrepo.Info) bool {
	return i.Kind != gitrepo.KindNone && i.Kind != gitrepo.KindGitDir && i.Kind != gitrepo.KindBare
}

// head is the commit that a sandbox of the target starts from, "" where there is none.
func (t *target) head() string {
	if t.commit != "" {
		return t.commit
	}
	return t.info.Head
}

// lost is what of a path its base image could not keep.
func (t *target) lost() []layer.Lost {
	if t.index == nil {
		return nil
	}
	return t.index.Lost()
}

// submoduleNotes say of a checkout of a repository what is not filled in. Its base is made after the claim, so its work tree has
// to tell.
func submoduleNotes(path string) []string {
	if _, err := os.Lstat(filepath.Join(path, ".gitmodules")); err != nil {
		return nil
	}
	return []string{"submodules: their directories are empty in the sandbox; a step can fill them, and copy_on_write has them as they are"}
}
