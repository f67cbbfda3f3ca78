package mask

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"math/rand/v2"
	"net/url"
	"strings"
	"testing"
)

const key = "-----BEGIN KEY-----\nMIIEowIBAAKCAQEA7yn3\nbRUDsfl0yqXk1mCkP9c\nVt1r9h2bOqQvM5m4wQk\nzz81Hsa7HqpGk2vYxLc\n-----END KEY-----\n"

// Case J3: many-line secrets, secrets cut by a chunk, and masking too much.
func TestSet_Text(t *testing.T) {
	json := "{\n\"k\": [\n\"v\"\n]\n}"
	padded := func(n int) string { return base64.StdEncoding.EncodeToString([]byte(strings.Repeat("p", n) + key)) }
	for _, c := range []struct {
		name    string
		secrets []string
		text    string
		want    string
	}{
		{"None", nil, "anything", "anything"},
		{"Empty", []string{""}, "anything", "anything"},
		{"TwoCharacters", []string{"ab"}, "ab abc", "ab abc"},
		{"Once", []string{"hunter2"}, "it is hunter2.", "it is ***."},
		{"Twice", []string{"hunter2"}, "hunter2hunter2 hun", "****** hun"},
		{"OneHoldsTheOther", []string{"pass", "mypassword"}, "mypassword pass mypassport", "*** *** my***port"},
		{"Overlapping", []string{"abcdef", "defghi"}, "xabcdefghix", "x***x"},
		{"Key", []string{key}, "<" + key + ">", "<***\n>"},
		{"KeyLine", []string{key}, "> bRUDsfl0yqXk1mCkP9c <", "> *** <"},
		{"KeyCRLF", []string{key}, strings.ReplaceAll(key, "\n", "\r\n"), strings.Repeat("***\r\n", 6)},
		{"KeyIndented", []string{key}, "  MIIEowIBAAKCAQEA7yn3", "  ***"},
		{"BracesStay", []string{json}, `{"a": [1, {"b": "w"}]}` + "\n{\n}\n", `{"a": [1, {"b": "w"}]}` + "\n{\n}\n"},
		{"JSONWhole", []string{json}, "x" + json, "x***"},
		{"NoNewlineAtTheEnd", []string{"hunter2\n"}, "x=hunter2;", "x=***;"},
		{"Base64", []string{key}, padded(0), "***LQo="},
		{"URL", []string{"S3cr3t/x y"}, "https://u:" + url.QueryEscape("S3cr3t/x y") + "@h S3cr3t%2fx%20y", "https://u:***@h ***"},
		{"JSONEscaped", []string{"a\"b\\c<d"}, `{"v":"a\"b\\c\u003cd"}`, `{"v":"***"}`},
		{"CutOff", []string{"0123456789"}, "so 0123456", "so ***"},
		{"CutOffBesideALonger", []string{"0123456789", "01234567" + strings.Repeat("long", 20)}, "so 0123456", "so ***"},
		{"CutOffWithinALonger", []string{"0123456789", "x01234567" + strings.Repeat("long", 20)}, "so x0123456", "so x***"},
		{"BarelyBegun", []string{"0123456789"}, "so 012", "so 012"},
		{"OnlyBrackets", []string{"{ [ ] }"}, "{ [ ] }", "{ [ ] }"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var secrets [][]byte
			for _, s := range c.secrets {
				secrets = append(secrets, []byte(s))
			}
			got := New(secrets...).Text(c.text)
			if c.name == "Base64" {
				if strings.Contains(got, "Qkc") || len(got) > 12 || !strings.HasPrefix(got, "***") {
					t.Errorf("got %q", got)
				}
				return
			}
			if got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// Whatever stands before it and however its lines are broken, nothing of the key's base64 is left.
func TestSet_Text_Base64(t *testing.T) {
	s := New([]byte(key))
	for n := range 7 {
		whole := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("p", n) + key + "tail of it"))
		if got := s.Text(whole); len(got) > 40 || !strings.Contains(got, Replacement) {
			t.Errorf("after %d bytes: got %q", n, got)
		}
	}
	encoded := base64.StdEncoding.EncodeToString([]byte(key))
	for _, width := range []int{64, 76} {
		var wrapped strings.Builder
		for rest := encoded; rest != ""; {
			n := min(width, len(rest))
			wrapped.WriteString(rest[:n] + "\n")
			rest = rest[n:]
		}
		got := s.Text(wrapped.String())
		if len(got) > 4*len(encoded)/width+12 {
			t.Errorf("lines of %d: got %q", width, got)
		}
	}
}

// What is no secret goes on at once; a pause in the middle of one shows nothing of it.
func TestWriter_Pause(t *testing.T) {
	var out bytes.Buffer
	w := New([]byte(key)).Writer(&out)
	for _, step := range []struct{ write, want string }{
		{"prompt: ", "prompt: "},
		{"x -----BEGIN KEY-----\nMIIEow", "x "},
		{"IBAAKCAQEA7yn3\nbRUD", ""},
		{"sfl0yqXk1mCkP9c", ""},
		{"\nother line\n", "\nother line\n"},
	} {
		from := out.Len()
		io.WriteString(w, step.write)
		got := strings.ReplaceAll(out.String()[from:], Replacement, "")
		if step.want != "" && !strings.HasSuffix(got, step.want) || strings.Contains(got, "MIIE") || strings.Contains(got, "bRUD") {
			t.Errorf("after %q: got %q, want %q", step.write, out.String()[from:], step.want)
		}
	}
	w.Close()
	for _, line := range strings.Split(key, "\n")[:3] {
		if strings.Contains(out.String(), line) {
			t.Errorf("got %q", out.String())
		}
	}
}

func TestWriter_Failure(t *testing.T) {
	r, w := io.Pipe()
	r.Close()
	m := New([]byte("hunter2")).Writer(w)
	if n, err := io.WriteString(m, "text "); n != 0 || err == nil {
		t.Errorf("got %d, %v", n, err)
	}
	if err := m.Close(); err == nil {
		t.Error("Close: got no error")
	}
}

// Secrets that go on differently after a common beginning are all found.
func TestSet_Text_ManyBranches(t *testing.T) {
	var secrets [][]byte
	var all strings.Builder
	for b := byte('!'); b <= '~'; b++ {
		one := "key" + string(b) + "tail" + string(b)
		secrets = append(secrets, []byte(one))
		all.WriteString(one + " ")
	}
	if got, want := New(secrets...).Text(all.String()), strings.Repeat(Replacement+" ", len(secrets)); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// naive masks the union of all occurrences, position by position.
func naive(text string, forms []string) string {
	cover := make([]bool, len(text)+1)
	joined := make([]bool, len(text)+1) // position i belongs to the same run as i-1
	for _, f := range forms {
		for i := 0; i+len(f) <= len(text); i++ {
			if text[i:i+len(f)] == f {
				for k := i; k < i+len(f); k++ {
					cover[k] = true
					joined[k] = joined[k] || k > i
				}
			}
		}
	}
	var out strings.Builder
	for i := range len(text) {
		switch {
		case !cover[i]:
			out.WriteByte(text[i])
		case !joined[i]:
			out.WriteString(Replacement)
		}
	}
	return out.String()
}

// FuzzWriter compares chunkings with each other and with a search that has no memory.
func FuzzWriter(f *testing.F) {
	f.Add("hunter2", "abcab", "xhunter2abcabcabx", uint64(1))
	f.Add(key, "aaaa", "aaaaaaaa"+key+"aaa", uint64(2))
	f.Add("abcdef", "defabc", "abcdefabcdefabc", uint64(3))
	f.Add("0123456789abcdefghijklmnopqrstuvwxyz", "mnopqrstuvwxyz0123456789mnopqrst", strings.Repeat("0123456789abcdefghijklmnopqrstuvwxyz0123456789 mnopqrst", 4), uint64(4))
	f.Fuzz(func(t *testing.T, a, b, text string, seed uint64) {
		if len(a)+len(b)+len(text) > 4096 {
			return
		}
		set := New([]byte(a), []byte(b))
		var whole bytes.Buffer
		w := set.Writer(&whole)
		io.WriteString(w, text+"\x00 end") // so that no prefix is left at the end, most of the time
		w.Close()
		var parts bytes.Buffer
		w = set.Writer(&parts)
		random := rand.New(rand.NewPCG(seed, 1))
		most := 7 // shorter than most secrets
		if seed%2 == 0 {
			most = 100 // with room for whole ones
		}
		longest := 0
		for _, p := range append(patterns([]byte(a)), patterns([]byte(b))...) {
			longest = max(longest, len(p))
		}
		for rest := text + "\x00 end"; rest != ""; {
			n := 1 + random.IntN(min(len(rest), most))
			if got, err := io.WriteString(w, rest[:n]); got != n || err != nil {
				t.Fatalf("got %d, %v", got, err)
			}
			rest = rest[n:]
			if len(w.held) >= max(longest, 1) {
				t.Fatalf("%d bytes held, longest form has %d", len(w.held), longest)
			}
		}
		w.Close()
		if whole.String() != parts.String() {
			t.Errorf("got %q in parts, %q at once", parts.String(), whole.String())
		}
		want := naive(text+"\x00 end", append(patterns([]byte(a)), patterns([]byte(b))...))
		if got := whole.String(); got != want && !strings.HasSuffix(got, Replacement) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

func BenchmarkWriter(b *testing.B) {
	line := []byte("2026-01-01T00:00:00Z building package github.com/example/thing/internal/part ok 12ms\n")
	chunk := bytes.Repeat(line, 32<<10/len(line))
	for name, set := range map[string]*Set{"None": New(), "Token": New([]byte("ghp_0123456789abcdefghij")), "Key": New([]byte(key))} {
		b.Run(fmt.Sprint(name), func(b *testing.B) {
			b.SetBytes(int64(len(chunk)))
			w := set.Writer(io.Discard)
			for b.Loop() {
				w.Write(chunk)
			}
		})
	}
}
