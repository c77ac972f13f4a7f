package service

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
)

// book writes the revenue of all messages with one statement. If book fails, it is
// called again for each message separately.
func book(ctx context.Context, tx *sql.Tx, msgs []*message.Message) ([]*message.Message, error) {
	var (
		rows []string
		args []any
	)
	for _, msg := range msgs {
		sale, err := decode[StockReserved](msg)
		if err != nil {
			return nil, err // in the separate calls only the malformed message fails
		}
		n := len(args)
		rows = append(rows, fmt.Sprintf("($%d, $%d, $%d, $%d, $%d)", n+1, n+2, n+3, n+4, n+5))
		args = append(args, sale.OrderID, msg.UUID, sale.Shop, sale.Currency, sale.Amount)
	}
	_, err := tx.ExecContext(ctx,
		`INSERT INTO revenue (order_id, message_id, shop, currency, amount) VALUES `+strings.Join(rows, ", "), args...)
	if err != nil {
		return nil, fmt.Errorf("revenue: %w", err)
	}
	return nil, nil
}
