package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Hosts is a client of the API that changes hosts. Replace it with a client of yours.
type Hosts struct{ URL string }

// Host is what the API reports of a host.
type Host struct {
	// The version that runs.
	Version string `json:"version"`
	// The version that is downloaded, if any.
	Prepared string `json:"prepared"`
	// The version to which the host is being upgraded, if any.
	Underway string `json:"underway"`
}

var httpClient = &http.Client{Timeout: 10 * time.Second}

// Look reports the state of a host.
func (h Hosts) Look(ctx context.Context, node string) (host Host, err error) {
	err = h.call(ctx, http.MethodGet, node, "", nil, &host)
	return host, err
}

// Prepare downloads a version. Like the calls below, it may be repeated.
func (h Hosts) Prepare(ctx context.Context, node, version string) error {
	return h.call(ctx, http.MethodPut, node, "/prepared", map[string]string{"version": version}, nil)
}

// Discard removes what Prepare has downloaded.
func (h Hosts) Discard(ctx context.Context, node string) error {
	return h.call(ctx, http.MethodDelete, node, "/prepared", nil, nil)
}

// Upgrade starts an upgrade, and does not wait for its end.
func (h Hosts) Upgrade(ctx context.Context, node, version, role string) error {
	return h.call(ctx, http.MethodPut, node, "/version", map[string]string{"version": version, "role": role}, nil)
}

func (h Hosts) call(ctx context.Context, method, node, path string, body, answer any) error {
	unreachable := func(err error) error {
		return Failure{"HostsNotReachable", fmt.Sprintf("%s of host %s: %v", method, node, err), true}
	}
	data, err := json.Marshal(body)
	if err != nil {
		return err
	}
	address := strings.TrimSuffix(h.URL, "/") + "/hosts/" + url.PathEscape(node) + path
	request, err := http.NewRequestWithContext(ctx, method, address, bytes.NewReader(data))
	if err != nil {
		return unreachable(err)
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := httpClient.Do(request)
	if err != nil {
		return unreachable(err)
	}
	defer response.Body.Close()
	data, err = io.ReadAll(io.LimitReader(response.Body, 64<<10))
	text := strings.TrimSpace(string(data))
	switch code := response.StatusCode; {
	case err != nil:
		return unreachable(err)
	case code == 401 || code == 408 || code == 425 || code == 429:
		return unreachable(errors.New(response.Status))
	case code >= 400 && code < 500 && text != "":
		// The API says why it does not do this: asking again does not help.
		return Failure{"HostRefused", fmt.Sprintf("%s%s of host %s: %s", method, path, node, text), false}
	case code >= 300:
		return unreachable(errors.New(response.Status))
	case answer == nil:
		return nil
	}
	if err := json.Unmarshal(data, answer); err != nil {
		return unreachable(err)
	}
	return nil
}
