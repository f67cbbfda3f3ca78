package termsafe_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/warmfleet/warmfleet/internal/termsafe"
)

func TestText(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"Plain", "a\tb\nc é 漢字 👍🏽 e\u0301", "a\tb\nc é 漢字 👍🏽 e\u0301"},
		{"CSI", "\x1b[2J\x1b[31mred", "^[[2J^[[31mred"},
		{"OSC8Link", "\x1b]8;;http://evil\x1b\\text\x1b]8;;\a", `^[]8;;http://evil^[\text^[]8;;^G`},
		{"OSC52Clipboard", "\x1b]52;c;cm0gLXJmIC8=\a", "^[]52;c;cm0gLXJmIC8=^G"},
		{"C0", "\x00\b\x7f\v\f\r\x0e", "^@^H^?^K^L^M^N"},
		{"C1", "\u009b31m \u0085 \u009d52;c;x\u009c", "<U+009B>31m <U+0085> <U+009D>52;c;x<U+009C>"},
		{"C1Bytes", "\x9b31m", "<9b>31m"},
		{"NotUTF8", "\xff\xc3(\xe2\x82", "<ff><c3>(<e2><82>"},
		{"Overlong", "\xc0\x9b", "<c0><9b>"},
		{"Surrogate", "\xed\xa0\x80", "<ed><a0><80>"},
		{"Bidi", "a\u202egnp.exe\u2066\u2069\u061c\u200f", "a<U+202E>gnp.exe<U+2066><U+2069><U+061C><U+200F>"},
		{"Invisible", "a\u200bb\u00adc\ufeff\u2060", "a<U+200B>b<U+00AD>c<U+FEFF><U+2060>"},
		{"Separators", "a\u2028b\u2029", "a<U+2028>b<U+2029>"},
		{"Tags", "\U000e0041", "<U+E0041>"},
		{"JoinersStay", "👩\u200d💻 \u0645\u06cc\u200c\u062e", "👩\u200d💻 \u0645\u06cc\u200c\u062e"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := termsafe.Text(c.text); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestLine(t *testing.T) {
	if got, want := termsafe.Line("a\nb\tc\r\x1b"), "a^Jb^Ic^M^["; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestJSON_SameMeaning(t *testing.T) {
	for _, text := range []string{"plain", "\u009b31m\x7f\u202e", "\U000e0041\u2028", "a\nb\x1b[0m"} {
		b, err := json.MarshalIndent(map[string]string{text: text}, "", "\t")
		if err != nil {
			t.Fatal(err)
		}
		safe := termsafe.JSON(b)
		var got map[string]string
		if err := json.Unmarshal(safe, &got); err != nil {
			t.Fatalf("%q: %v", safe, err)
		}
		if d := cmp.Diff(got, map[string]string{text: text}); d != "" {
			t.Errorf("%q (-got +want)\n%s", text, d)
		}
		if got := termsafe.Text(string(safe)); got != string(safe) {
			t.Errorf("%q is not safe", safe)
		}
	}
	if got, want := string(termsafe.JSON([]byte("\"\xff\""))), `"\ufffd"`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// However a stream is cut into pieces, the same is shown, and nothing of it can act.
func TestWriter_AnyPieces(t *testing.T) {
	text := "progress 1%\rprogress 2%\r\nok \u202e é \U0001F44D\xe2\x82\x1b[2J\u009b\xff\n\r\r\nlast \xf0\x9f"
	want := "progress 1%\nprogress 2%\nok <U+202E> é \U0001F44D<e2><82>^[[2J<U+009B><ff>\n\n\nlast <f0><9f>"
	for size := 1; size <= len(text); size++ {
		var out bytes.Buffer
		w := termsafe.NewWriter(&out)
		for at := 0; at < len(text); at += size {
			if n, err := w.Write([]byte(text[at:min(at+size, len(text))])); err != nil || n != min(size, len(text)-at) {
				t.Fatalf("got %d, %v", n, err)
			}
		}
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(out.String(), want); d != "" {
			t.Errorf("in pieces of %d (-got +want)\n%s", size, d)
		}
	}
}

// A line that never ends is passed on, not collected.
func TestWriter_KeepsNothing(t *testing.T) {
	var out bytes.Buffer
	w := termsafe.NewWriter(&out)
	for range 100 {
		w.Write([]byte(strings.Repeat("x", 64<<10)))
	}
	if got, want := out.Len(), 100*64<<10; got != want {
		t.Errorf("got %d bytes, want %d", got, want)
	}
}

type broken struct{}

var errBroken = errors.New("broken")

func (broken) Write([]byte) (int, error) { return 0, errBroken }

func TestWriter_Error(t *testing.T) {
	if _, err := termsafe.NewWriter(broken{}).Write([]byte("x")); !errors.Is(err, errBroken) {
		t.Errorf("got %v, want %v", err, errBroken)
	}
}

func FuzzText(f *testing.F) {
	f.Add([]byte("\x1b]52;c;x\a\u009b\xff\u202e\r\n"), 1)
	f.Fuzz(func(t *testing.T, text []byte, cut int) {
		safe := termsafe.Text(string(text))
		if !utf8.ValidString(safe) {
			t.Errorf("%q is not UTF-8", safe)
		}
		if termsafe.Text(safe) != safe {
			t.Errorf("%q has something to spell out", safe)
		}
		for _, r := range safe {
			if r < ' ' && r != '\n' && r != '\t' || r >= 0x7f && r < 0xa0 || r >= 0x202a && r <= 0x202e {
				t.Errorf("%q has %U", safe, r)
			}
		}
		var whole, parts bytes.Buffer
		w := termsafe.NewWriter(&whole)
		w.Write(text)
		w.Flush()
		cut = max(0, min(cut, len(text)))
		w = termsafe.NewWriter(&parts)
		w.Write(text[:cut])
		w.Write(text[cut:])
		w.Flush()
		if whole.String() != parts.String() {
			t.Errorf("cut at %d: got %q, want %q", cut, parts.String(), whole.String())
		}
	})
}
