// A button on each block of code, which copies it: of a console only the commands, without their prompt.
document.addEventListener("DOMContentLoaded", () => {
  for (const block of document.querySelectorAll("div.highlight")) {
    const button = document.createElement("button");
    button.className = "copy";
    button.type = "button";
    button.textContent = "Copy";
    button.setAttribute("aria-label", "Copy this code");
    button.addEventListener("click", async () => {
      const pre = block.querySelector("td.code pre, pre");
      let text = pre.innerText;
      if (block.parentElement.classList.contains("highlight-console")) {
        const lines = text.split("\n").filter((line) => line.startsWith("$ "));
        text = lines.map((line) => line.slice(2)).join("\n") + "\n";
      }
      try {
        await navigator.clipboard.writeText(text);
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(pre); // where the clipboard is not allowed, Ctrl-C is left
        button.textContent = "Press Ctrl-C";
      }
      setTimeout(() => (button.textContent = "Copy"), 2000);
    });
    block.append(button);
  }
});
