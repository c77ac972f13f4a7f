package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// Client places orders. It repeats a request with the same key until the order is
// placed or refused.
type Client struct {
	// URL is the address of the service.
	URL string

	// HTTP defaults to http.DefaultClient.
	HTTP *http.Client
}

// Place places an order, and returns its id. key is sent as the
// Idempotency-Key.
func (c Client) Place(ctx context.Context, key string, body []byte) (string, error) {
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		status, answer, err := c.post(ctx, key, body)
		switch {
		case ctx.Err() != nil:
			return "", ctx.Err()
		case err != nil, status >= 500, status == http.StatusConflict: // the outcome is unknown, or the request should be repeated
		case status == http.StatusCreated:
			return orderID(answer)
		default:
			return "", fmt.Errorf("demo: the order with key %s was refused: %d %s", key, status, answer)
		}
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case <-time.After(pause):
		}
	}
}

func (c Client) post(ctx context.Context, key string, body []byte) (status int, answer []byte, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.URL+"/orders", bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Idempotency-Key", key)
	client := c.HTTP
	if client == nil {
		client = http.DefaultClient
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	answer, err = io.ReadAll(response.Body)
	return response.StatusCode, answer, err
}

func orderID(answer []byte) (string, error) {
	var order struct {
		ID string `json:"id"`
	}
	if err := json.Unmarshal(answer, &order); err != nil {
		return "", fmt.Errorf("demo: read the answer: %w", err)
	}
	if order.ID == "" {
		return "", errors.New("demo: the answer has no id")
	}
	return order.ID, nil
}
