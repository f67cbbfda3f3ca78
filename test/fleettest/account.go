package fleettest

import (
	"os"
	"os/user"
	"strconv"
	"syscall"
	"testing"
)

// Account is who runs programs in a test; without credentials it is whoever runs the tests. Its name is a sub-test's.
type Account struct {
	Name string
	UID  int
	Cred *syscall.Credential
}

// Self is whoever runs the tests.
func Self() Account {
	if os.Getuid() == 0 {
		return Account{Name: "AsRoot"}
	}
	return Account{Name: "AsUser", UID: os.Getuid()}
}

// Ordinary is an account without privileges: nobody for root, else whoever runs the tests.
func Ordinary(t testing.TB) Account {
	t.Helper()
	if os.Getuid() != 0 {
		return Self()
	}
	u, err := user.Lookup("nobody")
	if err != nil {
		t.Fatalf("look nobody up: %v", err)
	}
	uid, _ := strconv.Atoi(u.Uid)
	gid, _ := strconv.Atoi(u.Gid)
	return Account{Name: "AsNobody", UID: uid, Cred: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
}

// Accounts are whoever runs the tests and, where that is root, also an ordinary user:
// permissions prove nothing as root.
func Accounts(t testing.TB) []Account {
	t.Helper()
	all := []Account{Self()}
	if os.Getuid() == 0 {
		all = append(all, Ordinary(t))
	}
	return all
}

// EachAccount runs do on a fleet with one worker, "w", for each of the accounts.
func EachAccount(t *testing.T, do func(t *testing.T, c *Cluster)) {
	t.Helper()
	for _, a := range Accounts(t) {
		t.Run(a.Name, func(t *testing.T) {
			t.Parallel()
			c := StartCluster(t, a)
			c.Worker(t, "w")
			do(t, c)
		})
	}
}
