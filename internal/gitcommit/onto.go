package gitcommit

import (
	"context"
	"fmt"
	"strings"

	"github.com/warmfleet/warmfleet/internal/gitrepo"
	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/pkg/plan/applier"
)

// Made is a commit that is made and on no branch yet.
type Made struct {
	// Commit is its id, "" when the branch already has everything.
	Commit string
	// Onto is its parent, "" for a first commit.
	Onto string
	// Changed is how many paths it changes.
	Changed int

	tree     string
	ontoTree string
	changes  []change
}

// Onto makes the commit of what was taken on top of a branch's tip: the three-way merge of tip and sandbox over the base that the
// sandbox started from, whatever the history of the tip is. The same input makes the same commit, on any host. For a tip of "" the
// branch does not exist, and the commit goes on the base. Conflicts come all at once, and then nothing is made.
func (w *Workshop) Onto(ctx context.Context, taken Taken, tip string) (Made, []applier.Conflict, error) {
	made, conflicts, err := w.onto(ctx, taken, tip)
	if err != nil {
		return Made{}, nil, fmt.Errorf("gitcommit: make commit: %w", err)
	}
	return made, conflicts, nil
}

func (w *Workshop) onto(ctx context.Context, taken Taken, tip string) (Made, []applier.Conflict, error) {
	made := Made{Onto: tip, tree: taken.Tree}
	if tip == "" {
		made.Onto = taken.work.Base
	}
	var err error
	if made.ontoTree, err = w.treeOf(ctx, made.Onto); err != nil {
		return Made{}, nil, err
	}
	if made.ontoTree != taken.base {
		var conflicts []applier.Conflict
		made.tree, conflicts, err = w.merge(ctx, taken.base, made.ontoTree, taken.Tree)
		if err != nil || len(conflicts) > 0 {
			return Made{}, conflicts, err
		}
	}
	if made.changes, err = w.diff(ctx, made.ontoTree, made.tree); err != nil || len(made.changes) == 0 {
		return made, nil, err
	}
	made.Changed = len(made.changes)
	made.Commit, err = w.commit(ctx, taken.work, made)
	return made, nil, err
}

// merge merges two trees over a third by git's own merge, which knows renames. The trees get commits for that, since git finds the
// base of a merge in the history.
func (w *Workshop) merge(ctx context.Context, base, ours, theirs string) (string, []applier.Conflict, error) {
	root, err := w.wrap(ctx, base, "")
	if err != nil {
		return "", nil, err
	}
	var sides []string
	for _, tree := range []string{ours, theirs} {
		c, err := w.wrap(ctx, tree, root)
		if err != nil {
			return "", nil, err
		}
		sides = append(sides, c)
	}
	if sides[0] == sides[1] { // both did the same
		return ours, nil, nil
	}
	var out strings.Builder
	err = w.git.Run(ctx, gitrepo.Call{
		GitDir: w.GitDir(), Alternates: w.facts.Objects, Config: w.facts.Core, Stdout: &out,
		Args: []string{"merge-tree", "--write-tree", "-z", "--no-messages", sides[0], sides[1]},
	})
	tree, rest, _ := strings.Cut(out.String(), "\x00")
	switch {
	case gitrepo.ExitCode(err) == 1:
		return "", mergeConflicts(rest), nil
	case err != nil:
		return "", nil, err
	}
	return tree, nil, nil
}

// wrap makes a commit of a tree.
func (w *Workshop) wrap(ctx context.Context, tree, parent string) (string, error) {
	args := []string{"commit-tree", tree, "-m", "x"}
	if parent != "" {
		args = append(args, "-p", parent)
	}
	return w.line(ctx, gitrepo.Call{Args: args, Env: identityEnv(gitrepo.Identity{Name: "x", Email: "x"}, "@0 +0000")})
}

func identityEnv(id gitrepo.Identity, date string) []string {
	return []string{
		"GIT_AUTHOR_NAME=" + id.Name, "GIT_AUTHOR_EMAIL=" + id.Email, "GIT_AUTHOR_DATE=" + date,
		"GIT_COMMITTER_NAME=" + id.Name, "GIT_COMMITTER_EMAIL=" + id.Email, "GIT_COMMITTER_DATE=" + date,
	}
}

// mergeConflicts reads the conflicted entries of merge-tree, "<mode> <id> <stage>\t<path>": stage 1 is the base, 2 the branch, 3 the plan.
func mergeConflicts(out string) []applier.Conflict {
	stages := map[layer.Path]string{}
	for entry := range strings.SplitSeq(out, "\x00") {
		meta, name, ok := strings.Cut(entry, "\t")
		f := strings.Fields(meta)
		if ok && len(f) == 3 {
			stages[layer.Path(name)] += f[2]
		}
	}
	found := map[layer.Path]applier.Kind{}
	for p, s := range stages {
		switch s {
		case "12":
			found[p] = applier.KindModifiedAndDeleted
		case "13":
			found[p] = applier.KindDeletedByOriginal
		case "23":
			found[p] = applier.KindAddedBoth
		case "123":
			found[p] = applier.KindContent
		default:
			found[p] = applier.KindType
		}
	}
	return sorted(found)
}

// commit writes the commit object itself: git's own commands change names and messages that they do not like.
func (w *Workshop) commit(ctx context.Context, work Work, made Made) (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "tree %s\n", made.tree)
	if made.Onto != "" {
		fmt.Fprintf(&b, "parent %s\n", made.Onto)
	}
	who := fmt.Sprintf("%s <%s> %d +0000", work.Author.Name, work.Author.Email, work.Time.Unix())
	fmt.Fprintf(&b, "author %s\ncommitter %s\n\n%s\n", who, who, strings.TrimRight(work.Message, "\n"))
	return w.line(ctx, gitrepo.Call{Args: []string{"hash-object", "-t", "commit", "-w", "--stdin"}, Stdin: strings.NewReader(b.String())})
}
