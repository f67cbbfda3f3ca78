package plans

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/test/fleettest"
)

// Case J2: nothing of the worker's own environment, files or descriptors reaches a step.
func TestCase_J2(t *testing.T) {
	t.Parallel()
	for _, a := range fleettest.Accounts(t) {
		t.Run(a.Name, func(t *testing.T) {
			t.Parallel()
			c := fleettest.StartCluster(t, a)
			config := c.Path("config", "credentials")
			fleettest.Must(t, os.MkdirAll(filepath.Dir(config), 0o755))
			fleettest.Must(t, os.WriteFile(config, []byte("canary3"), 0o644))
			c.Own(t, c.Path("config"))
			in := *c
			in.Place = c.With("BROKER_PASSWORD=canary1", "AWS_SECRET_ACCESS_KEY=canary2", "SSH_AUTH_SOCK="+c.Path("agent"))
			in.Worker(t, "w")
			dir := c.Tree(t, "j2", "echo a >a")
			v := c.Warmfleet(t, "run", c.Plan(t, "apply: never",
				"env; cat /proc/*/environ | tr '\\0' '\\n' || true",
				"cat "+config+" "+c.Path("ctl", "nats.env")+" "+c.Path("w")+"/* || true; ls -R "+c.Path()+" || true",
				"ls /proc/self/fd | tr '\\n' ' '",
			), "--path", dir, "-o", "json").Exits(t, 0).View(t)
			got := c.Do(t, "warmfleet", "plan", "logs", v.ID)
			for _, secret := range []string{"canary", "SSH_AUTH_SOCK", c.Env[len(c.Env)-1], "NATS_PASSWORD"} {
				if strings.Contains(got, secret) {
					t.Errorf("a step saw %q:\n%s", secret, got)
				}
			}
			// ls has the directory open itself.
			if fds := c.Do(t, "warmfleet", "plan", "logs", v.ID, "--step", "step-3"); fds != "0 1 2 3 " {
				t.Errorf("descriptors %q, want the standard ones", fds)
			}
		})
	}
}

// Case J4: what looks like an option, or like a script, is a name, or is refused.
func TestCase_J4(t *testing.T) {
	t.Parallel()
	c := fleettest.StartCluster(t, fleettest.Ordinary(t))
	c.Worker(t, "w")
	remote := c.Tree(t, "remote", `git init -q -b trunk .; echo a >a
git add .; git -c user.name=t -c user.email=t@example.com commit -qm one
git update-ref 'refs/heads/--evil' HEAD; git update-ref 'refs/heads/-x' HEAD`)
	canary := c.Path("work", "CANARY")
	touch := "touch " + canary
	for name, args := range map[string][]string{
		"UploadPack": {"--repo", "file://" + remote, "--ref", "--upload-pack=" + touch + ";git-upload-pack"},
		"Output":     {"--repo", "file://" + remote, "--ref", "--output=" + canary},
		"Script":     {"--repo", "file://" + remote, "--ref", "$(" + touch + ")"},
		"Command":    {"--repo", "file://" + remote, "--ref", "trunk;" + touch},
		"Newline":    {"--repo", "file://" + remote, "--ref", "trunk\n" + touch},
		"ConfigURL":  {"--repo", "--config=core.fsmonitor=" + touch},
		"ExtURL":     {"--repo", "ext::sh -c '" + touch + "'"},
		"SSHOption":  {"--repo", "ssh://-oProxyCommand=" + touch + "/x"},
		"Directory":  {"--path", "-x"},
	} {
		t.Run(name, func(t *testing.T) {
			r := c.Warmfleet(t, append([]string{"run", c.Plan(t, "apply: never", "true"), "-o", "json"}, args...)...)
			if r.Code == 0 {
				t.Errorf("got success, want a refusal\n%s", r.Stderr)
			}
			if _, err := os.Stat(canary); err == nil {
				t.Fatal("a name was run")
			}
		})
	}
	t.Run("PlanID", func(t *testing.T) {
		r := c.Warmfleet(t, "submit", c.Plan(t, "apply: never\n"+fleettest.Resource(remote), "true"), "--id", "../../x")
		if r.Code != 2 {
			t.Errorf("got exit code %d, want 2: %s", r.Code, r.Stderr)
		}
	})
	t.Run("Files", func(t *testing.T) {
		dir := c.Tree(t, "dashes", `git init -q -b trunk .; echo 'foo()' >./--help; echo b >./-x
git add -- .; git -c user.name=t -c user.email=t@example.com commit -qm one`)
		v := c.Warmfleet(t, "run", c.PlanOf(t, "strategy: git_worktree\napply: auto\ncommit: {message: m}\nidentity: {name: t, email: t@example.com}",
			`{edit: {path: --help, old: "foo()", new: "bar()"}}`,
			`{write_file: {path: -new, content: "n"}}`,
			`{run: "rm ./-x"}`,
		), "--path", dir, "--yes", "-o", "json").Exits(t, 0).View(t)
		if v.State != events.StateApplied {
			t.Fatalf("got %s\n%s", v.State, c.Story(t, v.ID))
		}
		if got := c.Sh(t, dir, "git ls-tree --name-only -z trunk | tr '\\0' ' '; git show trunk:--help"); got != "--help -new bar()\n" {
			t.Errorf("committed: %q", got)
		}
		failed := c.Warmfleet(t, "run", c.PlanOf(t, "strategy: none\napply: auto",
			`{write_file: {path: --help, content: "changed"}}`, `{write_file: {path: --more, content: "n"}}`, `{run: "exit 1"}`,
		), "--path", dir, "--yes", "-o", "json").Exits(t, 3).View(t)
		if got := c.Sh(t, dir, "git status --porcelain"); got != "" {
			t.Errorf("after the roll-back of %s: %q", failed.ID, got)
		}
	})
}

// Case J5: file steps stay inside whatever links there are. The race with a step is in test/escape.
func TestCase_J5(t *testing.T) {
	t.Parallel()
	for _, a := range fleettest.Accounts(t) {
		t.Run(a.Name, func(t *testing.T) {
			t.Parallel()
			c := fleettest.StartCluster(t, a)
			c.Worker(t, "w")
			dir := c.Tree(t, "j5", `mkdir ../out sub; echo old >../out/victim; echo old >sub/f
ln -s ../out/victim a; ln -s ../out/new b; ln -s .. d; ln -s /proc/self/cwd e; ln -s sub/f in; ln -s "$(realpath ../out/victim)" abs`)
			for _, path := range []string{"a", "b", "d/x", "e/../x", "d/out/victim", "abs", "./../x", "../out/victim", filepath.Join(c.Path("work"), "out", "victim")} {
				c.Warmfleet(t, "run", c.PlanOf(t, "apply: auto", "{write_file: {path: "+fleettest.Quoted(path)+", content: changed}}"), "--path", dir, "--yes")
				c.Warmfleet(t, "run", c.PlanOf(t, "apply: auto", "{edit: {path: "+fleettest.Quoted(path)+", old: old, new: changed}}"), "--path", dir, "--yes")
				if got := filesBeside(t, c.Path("work")); got != "out/victim=old\n " {
					t.Fatalf("%s: outside is %q", path, got)
				}
			}
			c.Warmfleet(t, "run", c.PlanOf(t, "apply: auto", "{edit: {path: in, old: old, new: new}}"), "--path", dir, "--yes").Exits(t, 0)
			if got, err := os.ReadFile(filepath.Join(dir, "sub", "f")); err != nil || string(got) != "new\n" {
				t.Errorf("through a link inside: %q, %v", got, err)
			}
			if link, err := os.Readlink(filepath.Join(dir, "in")); err != nil || link != "sub/f" {
				t.Errorf("the link became %q, %v", link, err)
			}
		})
	}
}

// filesBeside is what lies in the directory of the trees beside the tree j5.
func filesBeside(t *testing.T, work string) string {
	t.Helper()
	var b strings.Builder
	fleettest.Must(t, filepath.WalkDir(work, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == filepath.Join(work, "j5") {
			return filepath.SkipDir
		}
		if name, _ := filepath.Rel(work, path); !d.IsDir() {
			content, err := os.ReadFile(path)
			b.WriteString(name + "=" + string(content) + " ")
			return err
		}
		return nil
	}))
	return b.String()
}
