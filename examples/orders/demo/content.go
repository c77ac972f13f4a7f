package demo

import (
	"math/rand/v2"

	"github.com/watermill-once/once/examples/orders/service"
)

// The orders contain ordinary text, and text that reveals mistakes in quoting,
// encodings and column widths.
var (
	shops     = []string{"berlin", "osaka", "são paulo"}
	customers = []string{
		"Ada Lovelace", "Jürgen Groß", "李雷", "مريم", "Zoë & Søren <Tea>", "O'Brien'); DROP TABLE orders;--",
		`José "Pepe" Núñez`, "e\u0301 decomposed", "🎈🎈🎈", "  spaced  ", `back\slash`, "%s %d {{.}}",
	}
	currencies = []string{"EUR", "USD", "JPY"}
	skus       = []string{"tea", "coffee", "cake", "mug", "pot", "spoon", "sugar", "milk", "lemon", "honey"}
)

// soldOut is an item that the shop does not have. Every twentieth order contains this
// item, and is therefore refused, refunded and cancelled.
const soldOut = "unicorn"

// content returns the nth order of a run. The same n always gives the same order.
func content(n int) service.NewOrder {
	random := rand.New(rand.NewPCG(1, uint64(n)))
	order := service.NewOrder{
		Shop:     pick(random, shops),
		Customer: pick(random, customers),
		Currency: pick(random, currencies),
	}
	lines := 1 + random.IntN(4)
	if n%40 == 39 {
		lines = 100
	}
	for range lines {
		line := service.Line{SKU: pick(random, skus), Quantity: 1 + random.Int64N(9), UnitPrice: random.Int64N(5000)}
		if random.IntN(50) == 0 {
			line.Quantity, line.UnitPrice = 10_000, 1_000_000_000 // the highest valid values
		}
		order.Lines = append(order.Lines, line)
	}
	if n%20 == 10 {
		order.Lines[len(order.Lines)-1].SKU = soldOut
	}
	return order
}

func pick(random *rand.Rand, from []string) string { return from[random.IntN(len(from))] }
