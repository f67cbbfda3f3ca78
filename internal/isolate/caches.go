package isolate

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// CachesDir is where caches appear in a sandbox, each under its name.
const CachesDir = "/cache"

// Cache is a directory that commands find in CachesDir. Where workspaces are no mounts there are none.
type Cache struct {
	Name  string
	Mount *os.File // what is shown; the caller's to close when Start has returned
	// Upper takes what the sandbox changes, on the host.
	Upper string
}

// cacheVariables are of programs that look there for their caches.
func cacheVariables() map[string]string {
	return map[string]string{
		"go-build": "GOCACHE", "go-mod": "GOMODCACHE", "npm": "npm_config_cache", "pip": "PIP_CACHE_DIR", "yarn": "YARN_CACHE_FOLDER",
		"uv": "UV_CACHE_DIR", "ccache": "CCACHE_DIR",
	}
}

// ValidCache reports a name that a cache can't have: it is a file name and part of a variable's.
func ValidCache(name string) error {
	bad := func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-')
	}
	if name == "" || len(name) > 32 || name[0] == '-' || strings.ContainsFunc(name, bad) {
		return fmt.Errorf("isolate: cache name %q: use a-z, 0-9 and -, up to 32", name)
	}
	return nil
}

// cacheEnv tells commands where caches are: as WARMFLEET_CACHE_NAME, and to programs that are known by name.
func (c Config) cacheEnv() []string {
	var env []string
	for _, cache := range c.Caches {
		dir := CachesDir + "/" + cache.Name
		env = append(env, "WARMFLEET_CACHE_"+strings.ToUpper(strings.ReplaceAll(cache.Name, "-", "_"))+"="+dir)
		if name, ok := cacheVariables()[cache.Name]; ok {
			env = append(env, name+"="+dir)
		}
	}
	return env
}

// Written are the directories of the host that take what commands write beside the workspace and memory.
func (i *Init) Written() []string {
	var dirs []string
	if i.private != "" && i.config.Rung != RungBare {
		dirs = append(dirs, i.private)
	}
	for _, c := range i.config.Caches {
		dirs = append(dirs, c.Upper)
	}
	return slices.Clip(dirs)
}
