package worker

import (
	"context"
	"errors"
	"fmt"

	"github.com/warmfleet/warmfleet/internal/isolate"
	"github.com/warmfleet/warmfleet/internal/mask"
	"github.com/warmfleet/warmfleet/internal/secret"
)

// secretProvider is where this worker's secrets come from: its directory, then its environment.
func (w *Worker) secretProvider() secret.Provider {
	chain := secret.Chain{secret.Env{}}
	if w.cfg.SecretsDir != "" {
		chain = secret.Chain{secret.Dir(w.cfg.SecretsDir), secret.Env{}}
	}
	return chain
}

// secretValues gets the values of names, and what masks them. A name without value is refused with code secret_missing.
func (w *Worker) secretValues(ctx context.Context, names []string) (map[string][]byte, *mask.Set, error) {
	if len(names) == 0 {
		return nil, nil, nil
	}
	provider := w.secretProvider()
	values := make(map[string][]byte, len(names))
	var all [][]byte
	size := 0
	for _, name := range names {
		value, err := provider.Get(ctx, name)
		if errors.Is(err, secret.ErrMissing) {
			return nil, nil, refuse("secret_missing", "secret %q: worker %s has none of that name: put its value into %s, or into the variable %s%s of the worker", name, w.cfg.Name, w.secretPlace(name), secret.EnvPrefix, name)
		}
		if err != nil {
			return nil, nil, refuse("secret_unreadable", "%v", err)
		}
		values[name], all, size = value, append(all, value), size+len(value)
	}
	if size > isolate.MaxSecrets {
		return nil, nil, refuse("secret_unreadable", "secrets: together %d bytes, more than the %d that a step can have: name fewer", size, isolate.MaxSecrets)
	}
	return values, mask.New(all...), nil
}

func (w *Worker) secretPlace(name string) string {
	if w.cfg.SecretsDir == "" {
		return fmt.Sprintf("a file %s (mode 0600) of a directory given with --secrets-dir", name)
	}
	return fmt.Sprintf("the file %s (mode 0600) of --secrets-dir %s", name, w.cfg.SecretsDir)
}

// provideSecrets gets what the job's plan asks for, before anything of it runs.
func (w *Worker) provideSecrets(ctx context.Context, j *job) error {
	var err error
	j.secrets, j.mask, err = w.secretValues(ctx, j.plan.Secrets)
	return err
}
