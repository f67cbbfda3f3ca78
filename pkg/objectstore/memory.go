package objectstore

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"io"
	"slices"
	"sync"
	"time"
)

// Memory is a Store in this process, for tests and simulations.
type Memory struct {
	mu      sync.Mutex
	objects map[string]memoryObject
	version uint64
}

type memoryObject struct {
	info Info
	data []byte // never changed once stored
}

// NewMemory returns an empty store.
func NewMemory() *Memory { return &Memory{objects: map[string]memoryObject{}} }

// Put implements Store.
func (m *Memory) Put(ctx context.Context, name string, r io.Reader) (Info, error) {
	if err := ValidName(name); err != nil {
		return Info{}, failed("put", name, err)
	}
	if info, err := m.Spare(ctx, name); err == nil {
		return info, nil
	}
	data, err := io.ReadAll(&contextReader{ctx, r})
	if err != nil {
		return Info{}, failed("put", name, err)
	}
	sum := sha256.Sum256(data)
	info := Info{Name: name, Size: int64(len(data)), Digest: digestString(sum[:]), ModTime: time.Now().UTC()}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.version++
	info.Version = m.version
	m.objects[name] = memoryObject{info: info, data: data}
	return info, nil
}

// Get implements Store.
func (m *Memory) Get(ctx context.Context, name string) (io.ReadCloser, error) {
	m.mu.Lock()
	o, ok := m.objects[name]
	m.mu.Unlock()
	if !ok {
		return nil, failed("get", name, ErrNotFound)
	}
	if err := o.usable(); err != nil {
		return nil, failed("get", name, err)
	}
	src := io.NopCloser(&contextReader{ctx, bytes.NewReader(o.data)})
	return newVerifier(src, o.info), nil
}

// Stat implements Store.
func (m *Memory) Stat(_ context.Context, name string) (Info, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	o, ok := m.objects[name]
	if !ok {
		return Info{}, failed("stat", name, ErrNotFound)
	}
	if err := o.usable(); err != nil {
		return Info{}, failed("stat", name, err)
	}
	return o.info, nil
}

// Delete implements Store.
func (m *Memory) Delete(_ context.Context, name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.objects, name)
	return nil
}

// List implements Store.
func (m *Memory) List(context.Context) ([]Info, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	infos := make([]Info, 0, len(m.objects))
	for _, o := range m.objects {
		infos = append(infos, o.info)
	}
	slices.SortFunc(infos, byName)
	return infos, nil
}

func byName(a, b Info) int { return cmp.Compare(a.Name, b.Name) }

// contextReader ends a read between two calls of Read when its context is done.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (c *contextReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}
