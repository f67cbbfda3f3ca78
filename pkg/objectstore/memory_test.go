package objectstore_test

import (
	"testing"

	"github.com/warmfleet/warmfleet/pkg/objectstore"
	"github.com/warmfleet/warmfleet/pkg/objectstore/objectstoretest"
)

func TestMemory(t *testing.T) {
	objectstoretest.Run(t, func(*testing.T) objectstore.Store { return objectstore.NewMemory() })
}
