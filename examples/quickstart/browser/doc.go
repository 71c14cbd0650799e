// Package browser holds tests only. They drive a real, headless Chromium
// against the quickstart, a program of its own, and look at its pages as a
// person would. They are skipped where there is no Chromium.
package browser
