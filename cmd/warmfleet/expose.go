package main

import (
	"os"
	"path/filepath"
)

const exposeHelp = "directory that steps see read-only, under the same name; may be repeated"

// exposed makes the directories of --expose absolute. Links stay: steps see the names that
// were given.
func exposed(dirs []string) ([]string, error) {
	var out []string
	for _, dir := range dirs {
		abs, err := filepath.Abs(dir)
		if err != nil {
			return nil, usagef("--expose %q: %w", dir, err)
		}
		switch info, err := os.Stat(abs); {
		case err != nil:
			return nil, usagef("--expose %q: %w: name a directory that exists", dir, bare(err))
		case !info.IsDir():
			return nil, usagef("--expose %q: is not a directory", dir)
		}
		out = append(out, abs)
	}
	return out, nil
}
