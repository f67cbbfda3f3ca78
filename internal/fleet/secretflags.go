package fleet

import (
	"github.com/spf13/pflag"

	"github.com/warmfleet/warmfleet/internal/worker"
)

// SecretFlags registers where a worker's secrets come from.
func SecretFlags(fs *pflag.FlagSet, c *worker.Config) {
	fs.StringVar(&c.SecretsDir, "secrets-dir", "", "directory with secrets that plans may ask for, one file each, only the worker's user may read them")
}
