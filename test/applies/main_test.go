package applies

import (
	"testing"

	"github.com/warmfleet/warmfleet/test/fleettest"
)

func TestMain(m *testing.M) { fleettest.Main(m) }
