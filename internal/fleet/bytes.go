package fleet

import (
	"fmt"
	"strconv"
	"strings"
)

// units are what a number of bytes may end with, longest first.
var units = [...]struct {
	suffix string
	shift  uint
}{{"TiB", 40}, {"GiB", 30}, {"MiB", 20}, {"KiB", 10}, {"B", 0}, {"", 0}}

// Bytes is a flag whose value is a number of bytes, such as 500MiB or 10GiB.
type Bytes int64

// Set implements pflag.Value.
func (b *Bytes) Set(text string) error {
	for _, u := range units {
		number, ok := strings.CutSuffix(text, u.suffix)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(number), 10, 64)
		if err != nil || n<<u.shift>>u.shift != n {
			break
		}
		*b = Bytes(n << u.shift)
		return nil
	}
	return fmt.Errorf("%q: write a number of bytes such as 500MiB or 10GiB", text)
}

// String implements pflag.Value.
func (b *Bytes) String() string {
	for _, u := range units {
		if n := int64(*b); n != 0 && n>>u.shift<<u.shift == n {
			return strconv.FormatInt(n>>u.shift, 10) + u.suffix
		}
	}
	return strconv.FormatInt(int64(*b), 10)
}

// Type implements pflag.Value.
func (b *Bytes) Type() string { return "bytes" }
