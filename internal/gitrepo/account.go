package gitrepo

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Account is a user and group of this host.
type Account struct{ UID, GID uint32 }

// OwnerToBe is whom to run git as to write into a repository: its owner, where we are root and the owner is not. What
// git makes then belongs to them, and a link in the repository leads no further than they could go. Nil is
// whoever we are.
func OwnerToBe(gitDir string) (*Account, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	var st unix.Stat_t
	if err := unix.Stat(gitDir, &st); err != nil {
		return nil, fmt.Errorf("gitrepo: stat %q: %w", gitDir, err)
	}
	if st.Uid == 0 {
		return nil, nil
	}
	return &Account{UID: st.Uid, GID: st.Gid}, nil
}
