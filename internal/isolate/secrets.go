package isolate

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/warmfleet/warmfleet/internal/isolate/wire"
)

const (
	// SecretsDir is where a command in namespaces finds its secrets.
	SecretsDir = "/run/secrets"
	// SecretsVariable names the directory of secrets in the environment of a command that has some.
	SecretsVariable = "WARMFLEET_SECRETS"
	// MaxSecrets bounds all values of one command together, in bytes.
	MaxSecrets = 1 << 20
	// MaxScript bounds a Command's Script, in bytes.
	MaxScript = 2 << 20
	// scriptName is its file, a name that no secret can have.
	scriptName = ".script"
	// maxSecretName is the longest name of a file.
	maxSecretName = 255
	// maxSecrets bounds how many secrets one command has: each takes a page at least.
	maxSecrets = 256
)

// check refuses what no init should be asked.
func (c Command) check() error {
	if c.Timeout < 0 || c.Grace < 0 {
		return fmt.Errorf("negative timeout %v or grace %v", c.Timeout, c.Grace)
	}
	size := 0
	for name, value := range c.Secrets {
		if name == "" || name[0] == '.' || len(name) > maxSecretName || strings.ContainsAny(name, "/\x00") {
			return fmt.Errorf("secret %q: not the name of a file", name)
		}
		size += len(value)
	}
	if size > MaxSecrets || len(c.Secrets) > maxSecrets {
		return fmt.Errorf("%d secrets of %d bytes: the limits are %d and %d", len(c.Secrets), size, maxSecrets, MaxSecrets)
	}
	if len(c.Script) > MaxScript {
		return fmt.Errorf("script of %d bytes: the limit is %d", len(c.Script), MaxScript)
	}
	return nil
}

// request is what an init is asked for, without descriptors.
func (i *Init) request(c Command) *wire.Exec {
	m := &wire.Exec{Argv: c.Argv, Env: c.Env, Dir: c.Dir, Notify: c.Started != nil, Processes: uint64(max(c.Processes, 0))}
	if len(c.Secrets) == 0 && len(c.Script) == 0 {
		return m
	}
	dir := SecretsDir
	if i.config.Rung == RungBare || i.config.Rung == RungLandlock {
		base := i.private
		if i.secrets != "" {
			base = i.secrets
		}
		i.mu.Lock()
		m.SecretsDir = fmt.Sprintf("%s/.secrets-%d", base, i.lastID+1)
		i.mu.Unlock()
		dir = m.SecretsDir
	}
	if len(c.Script) > 0 {
		m.Argv = append(slices.Clone(c.Argv), dir+"/"+scriptName)
		m.Secrets = append(m.Secrets, wire.Secret{Name: scriptName, Value: c.Script})
	}
	if len(c.Secrets) > 0 {
		m.Env = append(slices.Clone(c.Env), SecretsVariable+"="+dir)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Secrets)) {
		m.Secrets = append(m.Secrets, wire.Secret{Name: name, Value: c.Secrets[name]})
	}
	return m
}
