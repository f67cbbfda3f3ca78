package image

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// headTimeout bounds what git is asked about the repository that a build left.
const headTimeout = time.Minute

// findBroken lists what makes .git no repository, each as a word and a path after brokenWord, ended by NUL. It opens nothing, so that no
// pipe holds it up.
const findBroken = `
bad=
broken() { bad=1; printf '` + brokenWord + `%s: %s\0' "$1" "$2"; }
if [ ! -r .git ] || [ ! -x .git ]; then broken 'not readable' .git; exit 0; fi
for name in HEAD config refs objects; do
	if [ ! -e .git/$name ] && [ ! -L .git/$name ]; then broken missing .git/$name; fi
done
for name in HEAD config index packed-refs shallow refs objects; do
	case $name in refs | objects) kind=directory is=-d ;; *) kind=file is=-f ;; esac
	if [ -L .git/$name ]; then broken 'a link' .git/$name
	elif [ ! -e .git/$name ]; then continue
	elif [ ! $is .git/$name ]; then broken "not a $kind" .git/$name
	elif [ ! -r .git/$name ] || { [ $is = -d ] && [ ! -x .git/$name ]; }; then broken 'not readable' .git/$name
	fi
done
if [ "$bad" ]; then exit 0; fi
find .git ! -type f ! -type d ! -type l -printf '` + brokenWord + `neither a file nor a directory: %p\0'
`

// brokenWord begins what findBroken prints.
const brokenWord = "broken: "

// head asks git for the commit of HEAD, and whether it can read that commit's tree and the index.
const head = `export GIT_DIR=.git
if [ "$(git rev-parse --is-inside-work-tree)" != true ]; then echo 'it is set to have no work tree' >&2; exit 1; fi
git cat-file -e 'HEAD^{tree}'
git ls-files --stage >/dev/null
git rev-parse --verify 'HEAD^{commit}'
`

// broken refuses what steps made of the repository.
func broken(what string) error {
	return left("%s: a step broke the repository: let the steps leave it as it is", printable(what))
}

// checkHead lets the sandbox's own git find the commit that the image is of: a repository that it can't is of no use to anybody.
func (j Job) checkHead(ctx context.Context) error {
	if j.Commit == "" {
		return nil
	}
	var out bounded
	var said tail
	ended, err := j.Box.Run(ctx, Command{
		Argv: []string{"/bin/sh", "-euc", head}, Timeout: headTimeout, Stdout: &out, Stderr: &said,
		Env: append(ownConfig(), "GIT_OPTIONAL_LOCKS=0", "GIT_NO_LAZY_FETCH=1", "GIT_NO_REPLACE_OBJECTS=1", "LC_ALL=C"),
	})
	at := strings.TrimSpace(out.b.String())
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return fmt.Errorf("image: look at what the build left: %w", err)
	case ended.Cause == "timeout":
		return broken(fmt.Sprintf(".git: git does not answer within %s", headTimeout))
	case !ended.ok():
		return broken(".git: git can't read it: " + said.lines())
	case at != j.Commit:
		return left(".git: HEAD is at %s and not at %s, which the image is of: let the steps leave it where it is", cut(printable(at), toldStep), j.Commit)
	}
	return nil
}

// ownConfig is the environment of a git that reads no configuration but the repository's.
func ownConfig() []string { return []string{"GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null"} }
