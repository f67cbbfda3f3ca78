package layer

import (
	"errors"
)

// Errors of reading a stored layer, checked with errors.Is.
var (
	// ErrCorrupt says that a stored layer is not what its name promises, or not a layer at all.
	ErrCorrupt = errors.New("corrupt layer")
	// ErrLimit says that a layer is larger, deeper or more tightly compressed than allowed.
	ErrLimit = errors.New("layer limit exceeded")
)

// Limits bounds what a stored layer may make of its reader. A field that is 0 has its default.
type Limits struct {
	// Entries is the number of tar entries, whiteouts included. Default 4 Mi.
	Entries int64
	// Bytes is the length of the decoded tar in bytes. Default 256 GiB. Who knows the TarSize of a layer passes that.
	Bytes int64
	// Depth is the number of components in a path. Default 4096.
	Depth int
	// Names is the length of all paths together in bytes; they are held in memory. Default 1 GiB.
	Names int64
	// Header is the length of one entry's PAX records in bytes. Default 4 MiB.
	Header int64
	// Ratio is decoded bytes per compressed byte, judged once 4 GiB were decoded. Default 1000:
	// zeros that were written, not skipped, reach 30000, and a few GiB of them are no attack.
	Ratio int64
	// Window is the zstd window in bytes, which is what a decoder holds in memory. Default 32 MiB.
	Window uint64
}

// ratioFloor is the number of decoded bytes from which Limits.Ratio counts.
const ratioFloor = 4 << 30

func (l Limits) withDefaults() Limits {
	d := Limits{Entries: 4 << 20, Bytes: 256 << 30, Depth: 4096, Names: 1 << 30, Header: 4 << 20, Ratio: 1000, Window: 32 << 20}
	if l.Entries > 0 {
		d.Entries = l.Entries
	}
	if l.Bytes > 0 {
		d.Bytes = l.Bytes
	}
	if l.Depth > 0 {
		d.Depth = l.Depth
	}
	if l.Names > 0 {
		d.Names = l.Names
	}
	if l.Header > 0 {
		d.Header = l.Header
	}
	if l.Ratio > 0 {
		d.Ratio = l.Ratio
	}
	if l.Window > 0 {
		d.Window = l.Window
	}
	return d
}
