package gitrepo

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/layer"
)

// maxDelta is how many changed paths a checkout on top of an earlier one may have; more are as
// quickly checked out anew.
const maxDelta = 5000

// parent is an earlier checkout that a new one may build on.
type parent struct {
	commit string
	index  string // its index file
}

// checkedOut is a finished checkout.
type checkedOut struct {
	layer      layer.Layer
	submodules []string
	delta      bool // it needs the parent's layers below it
}

// listing is what a commit's tree holds.
type listing struct {
	files      map[string]bool // everything that is no directory
	dirs       map[string]bool // directories, those of submodules included
	submodules []string
}

// checkout makes a layer with the tree of src's commit and a private git directory. On a parent it
// holds only what differs, else everything. Either way all private files are in it, so that it
// covers those below.
func (w workshop) checkout(ctx context.Context, src source, objects layer.Chain, on *parent) (_ checkedOut, err error) {
	list, err := w.list(ctx, src.commit, objects)
	if err != nil {
		return checkedOut{}, err
	}
	changes, ok, err := w.changes(ctx, src.commit, objects, on)
	if err != nil {
		return checkedOut{}, err
	}
	if !ok || len(changes) > len(list.files)/2+1 {
		on, changes = nil, nil
	}
	staged, err := w.cache.Stage()
	if err != nil {
		return checkedOut{}, err
	}
	defer discardOn(&err, staged)
	dir := staged.Dir()
	if err := writePrivate(filepath.Join(dir, ".git"), src); err != nil {
		return checkedOut{}, fmt.Errorf("gitrepo: write git directory: %w", err)
	}
	if err := w.readTree(ctx, src, objects, checkoutJob{dir: dir, on: on}); err != nil {
		return checkedOut{}, err
	}
	if err := hideDeleted(dir, changes, list); err != nil {
		return checkedOut{}, fmt.Errorf("gitrepo: mark deletions: %w", err)
	}
	if err := w.stamp(dir, src.format(), changes, on == nil); err != nil {
		return checkedOut{}, err
	}
	l, err := staged.Commit(layer.Meta{})
	return checkedOut{layer: l, submodules: list.submodules, delta: on != nil}, err
}

// list reads the names in a commit's tree.
func (w workshop) list(ctx context.Context, commit string, objects layer.Chain) (listing, error) {
	out, err := w.git.Output(ctx, Call{
		GitDir: w.dir, Alternates: objectDirs(objects),
		Args: []string{"ls-tree", "-r", "-z", "--full-tree", commit},
	})
	if err != nil {
		return listing{}, err
	}
	l := listing{files: map[string]bool{}, dirs: map[string]bool{}}
	for entry := range bytes.SplitSeq(out, []byte{0}) {
		meta, name, ok := strings.Cut(string(entry), "\t")
		if !ok {
			continue
		}
		if strings.HasPrefix(meta, "160000 ") {
			l.submodules = append(l.submodules, name)
			l.dirs[name] = true
		} else {
			l.files[name] = true
		}
		for dir := filepath.Dir(name); dir != "." && !l.dirs[dir]; dir = filepath.Dir(dir) {
			l.dirs[dir] = true
		}
	}
	return l, nil
}

// changes lists what differs from the parent: path to status letter. It reports false where a
// checkout on top of the parent is not possible or not worth it.
func (w workshop) changes(ctx context.Context, commit string, objects layer.Chain, on *parent) (map[string]byte, bool, error) {
	if on == nil {
		return nil, false, nil
	}
	out, err := w.git.Output(ctx, Call{
		GitDir: w.dir, Alternates: objectDirs(objects),
		Args: []string{"diff-tree", "-r", "-z", "--no-renames", "--name-status", on.commit, commit},
	})
	if err != nil {
		return nil, false, err
	}
	fields := strings.Split(string(out), "\x00")
	changed := map[string]byte{}
	for i := 0; i+1 < len(fields); i += 2 {
		if filepath.Base(fields[i+1]) == ".gitattributes" {
			return nil, false, nil // unchanged files may have to look different now
		}
		changed[fields[i+1]] = fields[i][0]
	}
	return changed, len(changed) <= maxDelta, nil
}

// checkoutJob is one run of read-tree into a layer's directory.
type checkoutJob struct {
	dir string
	on  *parent
}

// readTree writes files and index. Attributes are taken from the index, filter programs are unknown
// to the workshop, so that what they would have made stays as it is stored.
func (w workshop) readTree(ctx context.Context, src source, objects layer.Chain, job checkoutJob) error {
	index := filepath.Join(job.dir, ".git", "index")
	args := []string{"read-tree", "--reset", "-u", src.commit}
	if job.on != nil {
		if err := copyFile(job.on.index, index); err != nil {
			return fmt.Errorf("gitrepo: copy index: %w", err)
		}
		args = []string{"read-tree", "-m", "-u", job.on.commit, src.commit}
	}
	return w.git.Run(ctx, Call{
		GitDir: w.dir, WorkTree: job.dir, Index: index, Alternates: objectDirs(objects),
		Config: append([]string{"checkout.workers=0"}, src.core...),
		Args:   args,
	})
}

// hideDeleted marks what the parent has and the commit has not. Git removes directories that become
// empty, so the topmost one that is gone is marked.
func hideDeleted(dir string, changes map[string]byte, list listing) error {
	done := map[string]bool{}
	for name, status := range changes {
		if status != 'D' {
			continue
		}
		gone := topmostGone(name, list)
		if gone == "" || done[gone] {
			continue
		}
		done[gone] = true
		path := filepath.Join(dir, gone)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := unix.Mknod(path, unix.S_IFCHR, 0); err != nil {
			return &os.PathError{Op: "mark", Path: path, Err: err}
		}
	}
	return nil
}

// topmostGone is the highest of name's directories, or name, that is gone; "" where a file or a
// directory of the commit covers it.
func topmostGone(name string, list listing) string {
	for i := range len(name) + 1 {
		if i < len(name) && name[i] != '/' {
			continue
		}
		if part := name[:i]; list.files[part] {
			return ""
		} else if !list.dirs[part] {
			return part
		}
	}
	return ""
}

// stamp sets modes, owners and times of the layer and makes the index agree. The index itself is a
// second younger than all files, so that git trusts it.
func (w workshop) stamp(dir, format string, changes map[string]byte, all bool) error {
	index := filepath.Join(dir, ".git", "index")
	now := uint32(w.mtime.Unix())
	err := stampIndex(index, format, func(name string) (uint32, bool) { return now, all || changes[name] != 0 })
	if err != nil {
		return err
	}
	if err := finishTree(dir, w.mtime); err != nil {
		return err
	}
	if err := setTime(index, w.mtime.Add(time.Second)); err != nil {
		return fmt.Errorf("gitrepo: stamp index: %w", err)
	}
	return nil
}

// writePrivate makes the git directory of a base, but for objects and index.
func writePrivate(dir string, src source) error {
	for _, d := range []string{"objects/info", "objects/pack", "refs/heads", "refs/tags", "hooks", "info"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return err
		}
	}
	head, refs := src.commit+"\n", "# pack-refs with: peeled fully-peeled sorted \n"
	if src.branch != "" {
		head = "ref: " + headsPrefix + src.branch + "\n"
		refs += src.commit + " " + headsPrefix + src.branch + "\n"
	}
	files := []privateFile{
		{"HEAD", []byte(head)},
		{"packed-refs", []byte(refs)},
		{"config", []byte(privateConfig(src))},
		{"info/exclude", src.exclude},
		{"info/attributes", src.attributes},
	}
	if src.shallow != nil {
		files = append(files, privateFile{"shallow", src.shallow})
	}
	return writeFiles(dir, files)
}

// privateConfig is the configuration of a base. Inode, owner and ctime of a file differ between the
// disk a layer was made on and what a sandbox shows, hence checkStat and trustctime; a gc by git's
// own decision would copy the whole history into the sandbox.
func privateConfig(src source) string {
	var b strings.Builder
	b.WriteString(formatSection(src.format()))
	b.WriteString("[core]\n\tlogallrefupdates = true\n\tcheckStat = minimal\n\ttrustctime = false\n")
	for _, s := range src.core {
		name, value, _ := strings.Cut(strings.TrimPrefix(s, "core."), "=")
		fmt.Fprintf(&b, "\t%s = %s\n", name, quoteConfig(value))
	}
	b.WriteString("[gc]\n\tauto = 0\n[maintenance]\n\tauto = false\n")
	if src.author.Name != "" || src.author.Email != "" {
		fmt.Fprintf(&b, "[user]\n\tname = %s\n\temail = %s\n", quoteConfig(src.author.Name), quoteConfig(src.author.Email))
	}
	if src.remote != "" {
		fmt.Fprintf(&b, "[remote \"origin\"]\n\turl = %s\n\tfetch = +refs/heads/*:refs/remotes/origin/*\n", quoteConfig(src.remote))
	}
	return b.String()
}

// quoteConfig writes a value so that git reads the same bytes back.
func quoteConfig(v string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`, "\t", `\t`, "\b", `\b`).Replace(v) + `"`
}
