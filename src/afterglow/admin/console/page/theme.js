// Light or dark: as the system says, until somebody chooses. Runs before the page is drawn, so that it never flashes.
(() => {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const read = () => {
    try {
      return localStorage.getItem("afterglow.theme");
    } catch {
      return null; // storage is switched off
    }
  };
  const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  if (["light", "dark"].includes(read())) root.dataset.theme = read();

  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    const label = () => {
      button.textContent = dark() ? "Light" : "Dark";
      button.setAttribute("aria-label", `Switch to the ${dark() ? "light" : "dark"} theme`);
    };
    button.addEventListener("click", () => {
      const wanted = dark() ? "light" : "dark";
      const systemSays = system.matches ? "dark" : "light";
      try {
        if (wanted === systemSays) localStorage.removeItem("afterglow.theme");
        else localStorage.setItem("afterglow.theme", wanted);
      } catch {
        // it holds for this page then
      }
      root.dataset.theme = wanted;
      label();
    });
    system.addEventListener("change", label);
    label();
  });
})();
