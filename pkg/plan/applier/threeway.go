package applier

import (
	"maps"

	"github.com/warmfleet/warmfleet/internal/fault"
	"github.com/warmfleet/warmfleet/internal/layer"
)

// verdict is the outcome of one path: a conflict, else a removal, else a state to reach, else nothing to do.
type verdict struct {
	conflict Kind
	detail   string
	above    bool // a conflict above it says that it goes nowhere
	remove   bool
	want     *state
}

// threeWay decides one path from its state in the base, the original and the sandbox; nil is absent.
func threeWay(base, orig, ours *state) verdict {
	switch {
	case fault.Off("applier.three-way"):
		return verdict{want: ours, remove: ours == nil}
	case base == nil && ours == nil:
		return verdict{}
	case base == nil:
		return added(orig, ours)
	case ours == nil:
		return deleted(base, orig)
	case orig == nil:
		return verdict{conflict: KindDeletedByOriginal}
	case same(orig, ours):
		return verdict{}
	case base.Type != orig.Type || base.Type != ours.Type:
		if same(orig, base) {
			return verdict{want: ours}
		}
		return verdict{conflict: KindType}
	}
	return merged(base, orig, ours)
}

func added(orig, ours *state) verdict {
	switch {
	case orig == nil:
		return verdict{want: ours}
	case same(orig, ours):
		return verdict{}
	}
	return verdict{conflict: KindAddedBoth}
}

func deleted(base, orig *state) verdict {
	switch {
	case orig == nil:
		return verdict{}
	case same(orig, base):
		return verdict{remove: true}
	case orig.Type != base.Type:
		return verdict{conflict: KindType}
	}
	return verdict{conflict: KindModifiedAndDeleted}
}

// merged takes content, mode and extended attributes each from the side that changed it; all three have one type.
func merged(base, orig, ours *state) verdict {
	want := *orig
	switch {
	case sameContent(orig, base):
		want.Size, want.Link, want.Rdev, want.Digest, want.MTime = ours.Size, ours.Link, ours.Rdev, ours.Digest, ours.MTime
	case !sameContent(ours, base) && !sameContent(orig, ours):
		return verdict{conflict: KindContent}
	}
	switch {
	case sameMode(orig, base):
		want.Mode = ours.Mode
	case !sameMode(ours, base) && !sameMode(orig, ours):
		return verdict{conflict: KindMode}
	}
	switch {
	case sameXattrs(orig, base):
		want.Xattrs = maps.Clone(ours.Xattrs)
	case !sameXattrs(ours, base) && !sameXattrs(orig, ours):
		return verdict{conflict: KindXattrs}
	}
	if same(orig, &want) {
		return verdict{}
	}
	return verdict{want: &want}
}

// asRecorded gives base and ours the modes and attributes that they would have had in the original's checkout, where git
// sees no difference between that and the base.
func (f *finding) asRecorded() {
	base, orig := f.base, f.orig
	if base == nil || orig == nil || base.Type != orig.Type || base.Type != layer.File && base.Type != layer.Dir {
		return
	}
	if base.Type == layer.File && (base.Mode^orig.Mode)&ownerExec != 0 {
		return
	}
	as := *base
	as.Mode, as.Xattrs = orig.Mode, orig.Xattrs
	if f.ours != nil && f.ours.Type == base.Type {
		ours := *f.ours
		ours.Mode = carried(base.Mode, ours.Mode, orig.Mode)
		if sameXattrs(base, f.ours) {
			ours.Xattrs = orig.Xattrs
		}
		f.ours = &ours
	}
	f.base = &as
}

const (
	ownerExec = 0o100
	allExec   = 0o111
	allRead   = 0o444
)

// carried makes the change of mode from base to ours on another mode, as git would: whoever may read may execute.
func carried(base, ours, on uint32) uint32 {
	switch {
	case base == ours:
		return on
	case (base^ours)&^allExec != 0: // asked for by its number
		return ours
	case ours&ownerExec == 0:
		return on &^ allExec
	}
	return on | on&allRead>>2
}

// special says what is privileged in going from orig to want: bits or capabilities that are new, or that new content
// would get, and devices. inherited are bits the kernel gives a new directory by itself.
func special(orig, want *state, inherited uint32) string {
	if fault.Off("applier.special") {
		return ""
	}
	if want.Type == layer.Char || want.Type == layer.Block {
		if orig == nil || !sameContent(orig, want) {
			return "device"
		}
	}
	var had uint32
	var hadCapability []byte
	if orig != nil && sameContent(orig, want) {
		had, hadCapability = orig.Mode, orig.Xattrs[capability]
	}
	if want.Mode&setIDs&^had&^inherited != 0 && want.Type != layer.Symlink {
		return "setuid or setgid"
	}
	if c := want.Xattrs[capability]; c != nil && string(c) != string(hadCapability) {
		return "file capability"
	}
	return ""
}
