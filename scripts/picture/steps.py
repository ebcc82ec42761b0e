steps = [
    [("list_invoices", {})],
    [("pay", {"invoice": "I-7", "euros": 40}), ("delete_invoices", {"before": "2025"})],
    "I paid I-7. The policy does not let me delete invoices.",
]
