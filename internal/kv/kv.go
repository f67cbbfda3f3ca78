// Package kv keeps small records under keys, with compare-and-set: leases, workers, pools, images, checkpoints.
//
// It has two implementations that pass the same suite (package kvtest): buckets of JetStream, declared in package
// events, and memory. It must not know what the records mean.
package kv

import (
	"context"
	"errors"
	"time"
)

// Errors that callers tell apart with errors.Is.
var (
	// ErrNotFound: no record under that key.
	ErrNotFound = errors.New("not found")
	// ErrExists: Create found a record.
	ErrExists = errors.New("exists")
	// ErrConflict: the record's revision is not the expected one. After a lost answer that may have been
	// the caller's own write: put something unique into the value, and compare.
	ErrConflict = errors.New("revision is not the expected one")
	// ErrKey: the key is none: it must match [A-Za-z0-9/_=.-]+ and not begin or end with a dot.
	ErrKey = errors.New("invalid key")
)

// Entry is a record.
type Entry struct {
	Key   string
	Value []byte
	// Revision grows with each write to the bucket. A deleted and re-created key never gets an old one again,
	// except in a memory bucket whose server was restarted.
	Revision uint64
	Created  time.Time // when this revision was written, by the server's clock
	Deleted  bool      // from Watch only: the key was deleted or has expired
}

// Bucket reads and writes single records. Safe for concurrent use. Reads may be a moment old on a cluster: decide by the result of
// Create, Update and Delete, never by a read.
type Bucket interface {
	// Create stores a record under a key that has none and returns its revision, or ErrExists.
	Create(ctx context.Context, key string, value []byte) (uint64, error)
	// Update replaces the record that has the revision, or fails with ErrConflict. In a bucket with a time to live it begins anew.
	Update(ctx context.Context, key string, value []byte, rev uint64) (uint64, error)
	// Put stores a record whatever is there.
	Put(ctx context.Context, key string, value []byte) (uint64, error)
	// Get returns the record, or ErrNotFound.
	Get(ctx context.Context, key string) (Entry, error)
	// Delete removes the record if it has the revision (0: whatever it has), or fails with ErrConflict. No record is no error
	// with revision 0.
	Delete(ctx context.Context, key string, rev uint64) error
}

// Scanner reads many records. Safe for concurrent use.
type Scanner interface {
	// List returns the records whose key begins with prefix, ordered by key. It is a snapshot of no exact moment.
	List(ctx context.Context, prefix string) ([]Entry, error)
	// Watch delivers every record that is there, then one Entry with an empty key, then each change as it happens. The channel closes when ctx
	// ends. One watcher per process and bucket is the measure.
	Watch(ctx context.Context) (<-chan Entry, error)
}

// Store is a Bucket that can be scanned.
type Store interface {
	Bucket
	Scanner
}
