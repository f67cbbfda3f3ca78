package layer

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
)

// rawTar writes headers as they are, each with as many x as its size says.
func rawTar(t testing.TB, headers ...tarHeader) []byte {
	t.Helper()
	var b bytes.Buffer
	w := &tarWriter{w: &b}
	for _, h := range headers {
		h.records = maps.Clone(h.records)
		if h.mtime.IsZero() {
			h.mtime = tarTime(0, 0)
		}
		if err := w.header(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, strings.Repeat("x", int(w.left))); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func rec(kv ...string) map[string]string {
	m := map[string]string{}
	for i := 0; i < len(kv); i += 2 {
		m[kv[i]] = kv[i+1]
	}
	return m
}

// sparseMap is the header of a file with holes whose map is given, with data bytes behind it.
func sparseMap(realSize, text string, data int64) tarHeader {
	m := append([]byte(text), zeros[:padding(int64(len(text)))]...)
	return tarHeader{
		name: sparseName, flag: flagFile, size: int64(len(m)) + data, sparseMap: m,
		records: rec(recSparseMaj, "1", recSparseMin, "0", recSparseNam, "f", recSparseLen, realSize),
	}
}

// hostileTars are archives that must be refused; each name says why.
func hostileTars(t testing.TB) map[string][]byte {
	t.Helper()
	root := tarHeader{name: "./", flag: flagDir, mode: 0o755}
	dir := func(name string) tarHeader { return tarHeader{name: name, flag: flagDir, mode: 0o755} }
	file := func(name string) tarHeader { return tarHeader{name: name, flag: flagFile, size: 4, mode: 0o644} }
	sym := func(name, to string) tarHeader { return tarHeader{name: name, flag: flagSymlink, link: to} }
	hard := func(name, to string) tarHeader { return tarHeader{name: name, flag: flagLink, link: to} }
	all := map[string][]byte{}
	for name, headers := range map[string][]tarHeader{
		"AbsoluteName":          {root, file("/etc/canary")},
		"DotDot":                {root, file("../canary")},
		"DotDotInside":          {root, dir("a/"), file("a/../../canary")},
		"DotInside":             {root, dir("a/"), file("a/./b")},
		"EmptyName":             {root, file("")},
		"EmptyComponent":        {root, dir("a/"), file("a//b")},
		"LongComponent":         {root, file(strings.Repeat("n", 256))},
		"NUL":                   {root, file("a").with(rec(recPath, "a\x00b"))},
		"RootAsFile":            {file(".")},
		"RootAsLink":            {sym(".", "/tmp")},
		"RootAsHardLink":        {root, file("a"), hard(".", "a")},
		"RootTwice":             {root, root},
		"Twice":                 {root, file("a"), file("a")},
		"TwiceAsDirectory":      {root, dir("a/"), dir("a/")},
		"OutOfOrder":            {root, file("b"), file("a")},
		"BelowSymlink":          {root, sym("a", "/tmp"), file("a/canary")},
		"BelowFile":             {root, file("a"), file("a/b")},
		"BelowWhiteout":         {root, tarHeader{name: ".wh.a", flag: flagFile}, file("a/b")},
		"BelowNothing":          {root, file("a/b")},
		"DirectoryOverSymlink":  {root, sym("a", "/tmp"), dir("a/"), file("a/canary")},
		"DirectoryAsFile":       {root, file("a/")},
		"FileAsDirectory":       {root, dir("a")},
		"HardLinkOutside":       {root, hard("a", "../canary")},
		"HardLinkAbsolute":      {root, hard("a", "/etc/passwd")},
		"HardLinkMissing":       {root, hard("a", "b")},
		"HardLinkToLater":       {root, hard("a", "b"), file("b")},
		"HardLinkToItself":      {root, hard("a", "a")},
		"HardLinkToDirectory":   {root, dir("a/"), hard("b", "a")},
		"HardLinkToRoot":        {root, hard("b", ".")},
		"HardLinkToWhiteout":    {root, tarHeader{name: ".wh.a", flag: flagFile}, hard("b", "a")},
		"HardLinkThroughLink":   {root, sym("a", "/etc"), hard("b", "a/passwd")},
		"HardLinkWithData":      {root, file("a"), tarHeader{name: "b", flag: flagLink, link: "a", size: 4}},
		"SymlinkEmpty":          {root, sym("a", "")},
		"SymlinkNUL":            {root, sym("a", "b").with(rec(recLink, "b\x00c"))},
		"SymlinkLong":           {root, sym("a", strings.Repeat("l", 4096))},
		"SymlinkWithData":       {root, tarHeader{name: "a", flag: flagSymlink, link: "b", size: 1}},
		"DirectoryWithData":     {root, tarHeader{name: "a/", flag: flagDir, size: 1}},
		"FileWithLink":          {root, tarHeader{name: "a", flag: flagFile, link: "b"}},
		"WhiteoutWithContent":   {root, file(".wh.a")},
		"WhiteoutAsDirectory":   {root, dir(".wh.a/")},
		"WhiteoutAsSymlink":     {root, sym(".wh.a", "b")},
		"WhiteoutAsHardLink":    {root, file("a"), hard(".wh.b", "a")},
		"WhiteoutOfNothing":     {root, tarHeader{name: ".wh.", flag: flagFile}},
		"WhiteoutOfDot":         {root, tarHeader{name: ".wh..", flag: flagFile}},
		"WhiteoutOfDotDot":      {root, tarHeader{name: ".wh...", flag: flagFile}},
		"WhiteoutAndEntry":      {root, tarHeader{name: ".wh.a", flag: flagFile}, file("a")},
		"WhiteoutWithXattr":     {root, tarHeader{name: ".wh.a", flag: flagFile, records: rec(recXattr+"user.a", "b")}},
		"OpaqueWithContent":     {root, dir("a/"), file("a/.wh..wh..opq")},
		"OpaqueOfNoDirectory":   {root, file("a"), tarHeader{name: "a/.wh..wh..opq", flag: flagFile}},
		"OpaqueTooLate":         {root, dir("a/"), file("a/b"), tarHeader{name: "a/.wh..wh..opq", flag: flagFile}},
		"OpaqueTwice":           {root, dir("a/"), {name: "a/.wh..wh..opq", flag: flagFile}, {name: "a/.wh..wh..opq", flag: flagFile}},
		"WhiteoutDevice":        {root, tarHeader{name: "a", flag: flagChar}},
		"AufsName":              {root, tarHeader{name: ".wh..wh.plnk", flag: flagFile}},
		"BelowWhiteoutName":     {root, dir(".wh.a/"), file(".wh.a/b")},
		"EscapedWithoutRecord":  {root, file(".warmfleet..wh.a")},
		"RecordOfAnotherName":   {root, file("a").with(rec(recRealPath, "../canary"))},
		"RecordNotEscaped":      {root, file("a").with(rec(recRealPath, "b"))},
		"LinkRecordOutside":     {root, hard("a", "b").with(rec(recRealLink, "../canary"))},
		"UnknownRecord":         {root, file("a").with(rec("WARMFLEET.future", "x"))},
		"ForeignRecord":         {root, file("a").with(rec("LIBARCHIVE.xattr.user.x", "x"))},
		"TrustedXattr":          {root, file("a").with(rec(recXattr+"trusted.overlay.redirect", "/etc"))},
		"SecurityXattr":         {root, file("a").with(rec(recXattr+"security.selinux", "x"))},
		"XattrNotEscaped":       {root, file("a").with(rec(recXattr+"user.a%b", "x"))},
		"XattrTooLarge":         {root, file("a").with(rec(recXattr+"user.a", strings.Repeat("v", 64<<10+1)))},
		"XattrNameTooLong":      {root, file("a").with(rec(recXattr+"user."+strings.Repeat("n", 251), "v"))},
		"XattrOfALink":          {root, tarHeader{name: "a", flag: flagSymlink, link: "b", records: rec(recXattr+"user.a", "v")}},
		"NegativeSize":          {root, file("a").with(rec(recSize, "-1"))},
		"SizeLessThanTheData":   {root, file("a").with(rec(recSize, "0"))},
		"SizeOfOverflow":        {root, file("a").with(rec(recSize, "18446744073709551615"))},
		"HardLinkDotDotInside":  {root, dir("a/"), file("a/f"), hard("b", "a/../a/f")},
		"HardLinkBelowWhiteout": {root, dir("a/"), tarHeader{name: "a/.wh.x", flag: flagFile}, hard("b", "a/x/y")},
		"TwiceAsLinkAndFile":    {root, sym("a", "/tmp/x"), file("a")},
		"TwiceAsFileAndLink":    {root, file("a"), sym("a", "/tmp/x")},
		"LinkThenOpaque":        {root, sym("a", "/tmp"), tarHeader{name: "a/.wh..wh..opq", flag: flagFile}},
		"LinkThenWhiteoutBelow": {root, sym("a", "/tmp"), tarHeader{name: "a/.wh.x", flag: flagFile}},
		"FifoThenBelow":         {root, tarHeader{name: "a", flag: flagFifo}, file("a/b")},
		"DeviceWithData":        {root, tarHeader{name: "a", flag: flagChar, rdev: 0x103, size: 4}},
		"NegativeOwner":         {root, file("a").with(rec(recUID, "-2"))},
		"OwnerBeyondLinux":      {root, file("a").with(rec(recUID, "4294967295"))},
		"TimeOfWords":           {root, file("a").with(rec(recMTime, "now"))},
		"SizeOfWords":           {root, file("a").with(rec(recSize, "all"))},
		"SizeBeyondTheArchive":  {root, file("a").with(rec(recSize, "4611686018427387903"))},
		"ModeBeyond7777":        {root, tarHeader{name: "a", flag: flagFile, mode: 0o100644}},
		"GlobalHeader":          {{name: "g", flag: 'g'}},
		"GNULongName":           {{name: "././@LongLink", flag: 'L', size: 4}},
		"OldFile":               {root, tarHeader{name: "a", flag: 0}},
		"TwoExtendedHeaders":    {root, tarHeader{name: "a", flag: flagPAX, records: rec("comment", "x")}, file("a")},
		"SparseOldFormat":       {root, file("f").with(rec(recSparseMaj, "0", recSparseMin, "1", recSparseNam, "f"))},
		"SparseWithoutName":     {root, tarHeader{name: sparseName, flag: flagFile, records: rec(recSparseMaj, "1", recSparseMin, "0")}},
		"SparseDirectory":       {root, tarHeader{name: sparseName, flag: flagDir, records: rec(recSparseMaj, "1", recSparseMin, "0", recSparseNam, "f/")}},
		"SparseDotDot":          {root, sparseMap("10", "1\n10\n0\n", 0).with(rec(recSparseNam, "../canary"))},
		"SparseEmptyMap":        {root, sparseMap("10", "", 0)},
		"SparseNoSegments":      {root, sparseMap("10", "0\n", 0)},
		"SparseWords":           {root, sparseMap("10", "one\n", 0)},
		"SparseCutMap":          {root, sparseMap("10", "2\n0\n1\n", 1)},
		"SparseManySegments":    {root, sparseMap("10", "999999999999\n", 0)},
		"SparseOverlap":         {root, sparseMap("100", "2\n0\n10\n5\n10\n", 20)},
		"SparseEmptyInside":     {root, sparseMap("100", "2\n0\n0\n5\n10\n", 10)},
		"SparseEmptyTooEarly":   {root, sparseMap("100", "1\n5\n0\n", 0)},
		"SparseBeyondItsSize":   {root, sparseMap("10", "1\n5\n10\n", 10)},
		"SparseOverflow":        {root, sparseMap("10", "1\n9223372036854775807\n9223372036854775807\n", 0)},
		"SparseLessData":        {root, sparseMap("100", "1\n0\n10\n", 5)},
		"SparseMoreData":        {root, sparseMap("100", "1\n0\n10\n", 50)},
		"SparseWithoutHole":     {root, sparseMap("10", "1\n0\n10\n", 10)},
		"SparseNegativeSize":    {root, sparseMap("-1", "1\n0\n0\n", 0)},
		"SparseWithoutRealSize": {root, tarHeader{name: sparseName, flag: flagFile, size: 512, sparseMap: append([]byte("1\n0\n0\n"), zeros[:506]...), records: rec(recSparseMaj, "1", recSparseMin, "0", recSparseNam, "f")}},
	} {
		all[name] = rawTar(t, headers...)
	}
	good := rawTar(t, root, file("a"))
	// A negative size in the binary form of GNU tar.
	binary := bytes.Clone(good)
	copy(binary[len(binary)-2*blockSize-2*blockSize+124:], "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff")
	fixChecksums(binary)
	all["BinaryNegativeSize"] = binary
	all["DataBehindTheEnd"] = append(bytes.Clone(good), zeros[:]...)
	all["ByteBehindTheEnd"] = append(bytes.Clone(good), 'x')
	all["NoEnd"] = good[:len(good)-2*blockSize]
	all["HalfAnEnd"] = good[:len(good)-blockSize]
	all["Empty"] = nil
	all["Text"] = []byte(strings.Repeat("this is no tar ", 200))
	all["WrongChecksum"] = bytes.Replace(good, []byte("a\x00"), []byte("b\x00"), 1)
	all["ZerosInTheMiddle"] = append(bytes.Clone(good), good...)
	return all
}

// with replaces or adds records.
func (h tarHeader) with(records map[string]string) tarHeader {
	h.records = maps.Clone(h.records)
	if h.records == nil {
		h.records = map[string]string{}
	}
	maps.Copy(h.records, records)
	return h
}

func TestCache_UnpackRefusesHostileArchives(t *testing.T) {
	canary := newCanary(t)
	c, err := OpenCache(filepath.Join(canary.dir, "cache"), tarOptions())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	before := canary.look()
	for name, tar := range hostileTars(t) {
		stored, packed := storedAs(t, tar)
		if _, err := c.Unpack(context.Background(), nil, stored, bytes.NewReader(packed)); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v, want ErrCorrupt", name, err)
		}
		after := canary.look()
		if diff := cmp.Diff(before, after); diff != "" {
			t.Errorf("%s changed what lies outside (-before +after):\n%s", name, diff)
		}
		before = after
	}
	wantEmpty(t, c)
}

// What is too much is refused before it is held in memory or on the disk, whatever the digest.
func TestCache_UnpackRefusesBombs(t *testing.T) {
	canary := newCanary(t)
	c, err := OpenCache(filepath.Join(canary.dir, "cache"), tarOptions())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	before := canary.look()
	root := tarHeader{name: "./", flag: flagDir, mode: 0o755}
	for name, headers := range map[string][]tarHeader{
		"HugeRecord": {root, tarHeader{name: "a", flag: flagFile, records: rec(recXattr+"user.a", strings.Repeat("v", 5<<20))}},
		"DeepPath":   {root, tarHeader{name: strings.Repeat("d/", 5000) + "f", flag: flagFile}},
	} {
		stored, packed := storedAs(t, rawTar(t, headers...))
		if _, err := c.Unpack(context.Background(), nil, stored, bytes.NewReader(packed)); !errors.Is(err, ErrLimit) {
			t.Errorf("%s: %v, want ErrLimit", name, err)
		}
	}
	// One frame whose decoder would have to hold 64 MiB.
	plain := rawTar(t, root, tarHeader{name: "a", flag: flagFile, size: 65 << 20})
	var wide bytes.Buffer
	enc, err := zstd.NewWriter(&wide, zstd.WithWindowSize(64<<20))
	if err == nil {
		_, err = enc.Write(plain)
		err = errors.Join(err, enc.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	stored := fmt.Sprintf("%s%x%s", namePrefix, sha256.Sum256(plain), nameSuffix)
	if _, err := c.Unpack(context.Background(), nil, stored, &wide); !errors.Is(err, ErrLimit) {
		t.Errorf("wide window: %v, want ErrLimit", err)
	}
	// Decoded bytes beyond what the caller knows the layer to have.
	tight := Limits{Bytes: int64(len(plain)) - 1}
	stored, packed := storedAs(t, plain)
	if _, err := c.unpackNew(context.Background(), nil, tarInput{Name: stored, R: bytes.NewReader(packed), Limits: tight}); !errors.Is(err, ErrLimit) {
		t.Errorf("more than its record says: %v, want ErrLimit", err)
	}
	if diff := cmp.Diff(before, canary.look()); diff != "" {
		t.Errorf("something outside changed (-before +after):\n%s", diff)
	}
	wantEmpty(t, c)
}

// canary is a directory around a cache, in which nothing may change.
type canary struct {
	t   testing.TB
	dir string
}

func newCanary(t testing.TB) canary {
	t.Helper()
	c := canary{t: t, dir: t.TempDir()}
	if err := os.WriteFile(filepath.Join(c.dir, "canary"), []byte("alive"), 0o600); err != nil {
		t.Fatal(err)
	}
	return c
}

// look lists the directory, with the cache's layers but without what is inside them.
func (c canary) look() []string {
	c.t.Helper()
	var seen []string
	err := filepath.WalkDir(c.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			seen = append(seen, path)
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		b, err := os.ReadFile(path)
		seen = append(seen, fmt.Sprintf("%s %v %v %q", path, info.Mode(), info.ModTime(), b))
		return err
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return seen
}
