import os

from ferrule import tool


@tool(read_only=True)
def list_invoices() -> dict[str, int]:
    """List the invoices that are due, in euros."""
    return {"I-7": 40, "I-8": 90}


@tool(idempotent=False)
def pay(invoice: str, euros: int) -> str:
    """Pay an invoice."""
    if invoice == "I-8":
        os.kill(os.getpid(), 9)
    return f"paid {invoice}"


@tool
def delete_invoices(before: str) -> str:
    """Delete old invoices."""
    return "deleted"
