package service

// The topics, with the services that publish to them. Each topic has one publisher,
// because only the service that owns a thing publishes events about it.
const (
	TopicOrdersPlaced     = "orders.placed"     // orders: a client has placed an order
	TopicPaymentsCaptured = "payments.captured" // payments: the customer has paid
	TopicStockReserved    = "stock.reserved"    // orders: the items are reserved
	TopicStockRefused     = "stock.refused"     // orders: an item is sold out
	TopicPaymentsRefunded = "payments.refunded" // payments: the customer got the money back
	TopicMailsIntended    = "mails.intended"    // payments: a mail must be sent
	TopicOrdersChanged    = "orders.changed"    // orders: an order has a new status
)

// OrderPlaced is the event of [TopicOrdersPlaced].
type OrderPlaced struct {
	OrderID  string `json:"order_id"`
	Shop     string `json:"shop"`
	Customer string `json:"customer"`
	Currency string `json:"currency"`
	Total    int64  `json:"total"`
	Lines    []Line `json:"lines"`
}

// PaymentCaptured is the event of [TopicPaymentsCaptured].
type PaymentCaptured struct {
	OrderID  string `json:"order_id"`
	Shop     string `json:"shop"`
	Customer string `json:"customer"`
	Currency string `json:"currency"`
	Amount   int64  `json:"amount"`
}

// StockReserved is the event of [TopicStockReserved].
type StockReserved struct {
	OrderID  string `json:"order_id"`
	Shop     string `json:"shop"`
	Currency string `json:"currency"`
	Amount   int64  `json:"amount"`
}

// StockRefused is the event of [TopicStockRefused].
type StockRefused struct {
	OrderID string `json:"order_id"`
	Shop    string `json:"shop"`
	SKU     string `json:"sku"` // the item that is sold out
}

// PaymentRefunded is the event of [TopicPaymentsRefunded].
type PaymentRefunded struct {
	OrderID  string `json:"order_id"`
	Shop     string `json:"shop"`
	Currency string `json:"currency"`
	Amount   int64  `json:"amount"`
}

// MailIntended is the event of [TopicMailsIntended]: an intent to send a mail.
type MailIntended struct {
	OrderID string `json:"order_id"`
	Shop    string `json:"shop"`
	To      string `json:"to"`
	Subject string `json:"subject"`
}

// OrderChanged is the event of [TopicOrdersChanged].
type OrderChanged struct {
	OrderID string `json:"order_id"`
	Shop    string `json:"shop"`
	Version int64  `json:"version"`
	Status  string `json:"status"`
}

func (e OrderPlaced) order() (shop, id string)     { return e.Shop, e.OrderID }
func (e PaymentCaptured) order() (shop, id string) { return e.Shop, e.OrderID }
func (e StockReserved) order() (shop, id string)   { return e.Shop, e.OrderID }
func (e StockRefused) order() (shop, id string)    { return e.Shop, e.OrderID }
func (e PaymentRefunded) order() (shop, id string) { return e.Shop, e.OrderID }
func (e MailIntended) order() (shop, id string)    { return e.Shop, e.OrderID }
func (e OrderChanged) order() (shop, id string)    { return e.Shop, e.OrderID }
