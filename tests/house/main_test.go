package house

import (
	"log"
	"os"
	"testing"

	"github.com/watermill-once/once/internal/test/kit"
)

// The tests read the files of the repository. Their paths begin at its root.
func TestMain(m *testing.M) {
	if err := os.Chdir("../.."); err != nil {
		log.Fatal(err)
	}
	kit.Main(m)
}
