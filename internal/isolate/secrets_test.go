package isolate_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/warmfleet/warmfleet/internal/isolate"
)

func with(secrets map[string]string) func(*isolate.Command) {
	return func(c *isolate.Command) {
		c.Secrets = map[string][]byte{}
		for name, value := range secrets {
			c.Secrets[name] = []byte(value)
		}
	}
}

func TestInit_Exec_Secrets(t *testing.T) {
	b := newBox(t, isolate.Config{})
	got, _ := b.sh(`echo $WARMFLEET_SECRETS; cd /run/secrets; stat -c '%n %a %u' *; cat A; sh -c 'cat /run/secrets/B'; wc -c <EMPTY
		{ echo y >A; } 2>/dev/null || echo read-only; stat -f -c %T .; env | grep -c canary`,
		with(map[string]string{"A": "canary-a\n", "B": "canary-b\n", "EMPTY": ""}))
	want := "/run/secrets\nA 400 1000\nB 400 1000\nEMPTY 400 1000\ncanary-a\ncanary-b\n0\nread-only\ntmpfs\n0\n"
	if got != want {
		t.Errorf("got:\n%swant:\n%s", got, want)
	}
	if got, _ := b.sh("ls -A /run/secrets; ls -A /proc/acpi; env | grep WARMFLEET; grep -c secrets /proc/mounts"); got != "0\n" {
		t.Errorf("next command: got %q, want nothing of them", got)
	}
}

// A detached process keeps its own, and others don't see them.
func TestInit_Start_Secrets(t *testing.T) {
	b := newBox(t, isolate.Config{})
	c := isolate.Command{Argv: []string{"/bin/sh", "-c", "until [ -e go ]; do sleep 0.01; done; cat /run/secrets/A"}, Env: b.BaseEnv()}
	with(map[string]string{"A": "canary"})(&c)
	d, err := b.Start(testContext(t), c)
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := b.sh("ls -A /run/secrets"); got != "" {
		t.Errorf("other command: got %q", got)
	}
	b.sh(": >go")
	eventually(t, "its end", func() bool { return detached(t, b.Init) == 0 })
	if got, _ := b.sh("cat " + d.Log); got != "canary" {
		t.Errorf("got %q", got)
	}
}

func TestInit_Exec_SecretsLimits(t *testing.T) {
	b := newBox(t, isolate.Config{})
	big := strings.Repeat("x", isolate.MaxSecrets)
	if got, _ := b.sh("wc -c </run/secrets/BIG", with(map[string]string{"BIG": big})); got != "1048576\n" {
		t.Errorf("got %q", got)
	}
	for _, secrets := range []map[string]string{{"": "x"}, {".": "x"}, {"..": "x"}, {"a/b": "x"}, {"a\x00": "x"}, {"BIG": big, "A": "x"}} {
		c := isolate.Command{Argv: []string{"true"}, Env: b.BaseEnv()}
		with(secrets)(&c)
		if _, err := b.Exec(testContext(t), c); err == nil {
			t.Errorf("%d secrets: got no error", len(secrets))
		}
	}
}

// Under the filter of strategy none, and with the workspace gone again at once.
func TestInit_Exec_SecretsConfined(t *testing.T) {
	b := newBox(t, isolate.Config{NoSetuid: true})
	got, _ := b.sh("grep -E 'Cap(Eff|Bnd)|NoNewPrivs|Seccomp:' /proc/self/status; : >f; chmod u+s f 2>/dev/null || echo refused; umount /run/secrets 2>/dev/null || echo kept", with(map[string]string{"A": "x"}))
	want := "CapEff:\t0000000000000000\nCapBnd:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2\nrefused\nkept\n"
	if got != want {
		t.Errorf("got:\n%swant:\n%s", got, want)
	}
	ctx := testContext(t)
	for range 20 {
		b.sh("echo x >>old; setsid sleep 60 &", with(map[string]string{"A": "x"}))
		if err := b.Detach(ctx); err != nil {
			t.Fatal(err)
		}
		b.attach()
	}
}

func TestBare_Secrets(t *testing.T) {
	i, _ := newBare(t)
	got, _ := runScript(t, i, "cat $WARMFLEET_SECRETS/A; stat -c %a $WARMFLEET_SECRETS $WARMFLEET_SECRETS/A; echo $WARMFLEET_SECRETS", with(map[string]string{"A": "canary\n"}))
	dir, ok := strings.CutPrefix(got, "canary\n700\n400\n")
	dir = strings.TrimSpace(dir)
	if !ok || !filepath.IsAbs(dir) {
		t.Fatalf("got %q", got)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("directory of secrets: got %v, want it removed", err)
	}
}

// A script is a file that only its command sees, without a variable that names it.
func TestInit_Exec_Script(t *testing.T) {
	eachRung(t, func(t *testing.T, i *isolate.Init) {
		script := strings.Repeat("# a comment\n", 50_000) + "cat; env | grep -c WARMFLEET_SECRETS; echo $#; readlink -f \"$0\""
		out, r := runScript(t, i, "", func(c *isolate.Command) { c.Argv, c.Script = []string{"/bin/sh", "-u"}, []byte(script) })
		name, found := strings.CutPrefix(out, "0\n0\n")
		if !found || plainOf(r).Code != 0 {
			t.Fatalf("got %q, %+v", out, plainOf(r))
		}
		if again, r := runScript(t, i, "cat "+name); plainOf(r).Code == 0 {
			t.Errorf("the next command can read %s: %d bytes", name, len(again))
		}
		if _, err := i.Exec(testContext(t), isolate.Command{Argv: []string{"sh"}, Script: make([]byte, isolate.MaxScript+1)}); err == nil {
			t.Error("a script beyond the limit: got no error")
		}
	})
}
