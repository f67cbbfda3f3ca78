package isolate

import (
	"fmt"
	"os"

	"github.com/warmfleet/warmfleet/internal/isolate/wire"
)

// takeReady reads an init's first answer, and takes the listener that comes with it.
func (i *Init) takeReady(frame wire.Frame, listens bool) error {
	var ready wire.Ready
	err := frame.Decode(&ready)
	switch {
	case err != nil:
	case !listens:
		return nil
	case len(frame.Files) != 1:
		err = fmt.Errorf("its first answer has %d listeners", len(frame.Files))
	default:
		i.proxied = frame.Files[0]
		return nil
	}
	frame.Close()
	return err
}

// Listener is the listening socket of a sandbox with NetworkProxy, which its caller has to close: it keeps the network
// namespace. nil without NetworkProxy, and for the second call. One that nobody took is closed by Close.
func (i *Init) Listener() *os.File {
	i.mu.Lock()
	defer i.mu.Unlock()
	f := i.proxied
	i.proxied = nil
	return f
}
