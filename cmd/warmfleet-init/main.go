// Command warmfleet-init is the program inside sandboxes: process 1 of a sandbox's
// namespaces, and the helper that mounts for a worker without root. Workers start it from
// beside their own executable because it starts faster than they do; without it they use
// themselves.
package main

import (
	"fmt"
	"os"

	"github.com/warmfleet/warmfleet/internal/isolate"
)

func main() {
	isolate.Main()
	fmt.Fprintln(os.Stderr, "warmfleet-init: started by workers, not by hand")
	os.Exit(2)
}
