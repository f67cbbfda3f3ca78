package layer_test

import (
	"testing"

	"github.com/warmfleet/warmfleet/internal/layer/drivertest"
	"github.com/warmfleet/warmfleet/internal/layer/layertest"
)

func TestDrivers(t *testing.T) { drivertest.Each(t, layertest.RunStep, drivertest.Suite) }
