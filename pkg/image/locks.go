package image

import (
	"errors"
	"fmt"
	"io/fs"
)

// maxLock bounds how much of a lock file is looked at, in bytes: it only has to be there.
const maxLock = 64 << 20

// lock is a file whose presence tells how a project's dependencies are fetched.
type lock struct {
	kind             string // of a kind the first that is there counts
	file             string
	setup, warm, why string
}

// locks are in the order of precedence within a kind. Their steps put things into the workspace: what lies elsewhere, as a home, is in no image.
var locks = []lock{
	{"node", "pnpm-lock.yaml", "corepack pnpm install --frozen-lockfile || pnpm install --frozen-lockfile", "", "pnpm installs exactly what it names"},
	{"node", "yarn.lock", "export YARN_ENABLE_GLOBAL_CACHE=0; corepack yarn install --immutable || yarn install --frozen-lockfile", "", "yarn installs exactly what it names"},
	{"node", "bun.lock", "bun install --frozen-lockfile", "", "bun installs exactly what it names"},
	{"node", "npm-shrinkwrap.json", "npm ci", "", "npm installs exactly what it names"},
	{"node", "package-lock.json", "npm ci", "", "npm installs exactly what it names"},
	{"go", "go.sum", "", "", "Go keeps modules and its build cache outside of the workspace, where no image has them: nothing to do"},
	{"rust", "Cargo.lock", "", "cargo build --locked", "a build fills target; the crates themselves are kept outside of the workspace, where no image has them"},
	{"python", "uv.lock", "uv sync --frozen", "", "uv installs exactly what it names"},
	{"python", "poetry.lock", "POETRY_VIRTUALENVS_IN_PROJECT=1 poetry install --no-interaction", "", "Poetry installs what it names, into .venv"},
	{"python", "Pipfile.lock", "PIPENV_VENV_IN_PROJECT=1 pipenv sync", "", "Pipenv installs what it names, into .venv"},
	{"python", "requirements.txt", "python3 -m venv .venv && .venv/bin/pip install -r requirements.txt", "", "pip installs what it lists, into .venv"},
	{"ruby", "Gemfile.lock", "bundle config set --local path vendor/bundle && bundle install", "", "Bundler installs what it names, into vendor/bundle"},
	{"php", "composer.lock", "composer install --no-interaction --no-progress", "", "Composer installs what it names"},
	{"elixir", "mix.lock", "mix deps.get", "mix compile", "Mix fetches what it names; a build fills _build"},
}

// findLocks returns the lock files at the top of a repository, one of each kind.
func findLocks(read Reader) ([]lock, error) {
	var found []lock
	seen := map[string]bool{}
	for _, l := range locks {
		if seen[l.kind] {
			continue
		}
		_, err := read(l.file, maxLock)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrNoFile) {
			continue
		}
		if err != nil && !errors.Is(err, ErrTooLarge) {
			return nil, fmt.Errorf("image: read %s: %w: %w", l.file, ErrRecipe, err)
		}
		seen[l.kind] = true
		found = append(found, l)
	}
	return found, nil
}
